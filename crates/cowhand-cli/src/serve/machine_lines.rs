//! Lines to paste: how virtual machine monitors, and libvirt, reach a disk over vhost-user-blk.

use std::path::Path;

use monitor::socket_path::file_name;

use super::libvirt_xml::{self, SHARED_MEMORY};
use super::paste::quote;

/// The lines for the socket of one export: the name of a monitor, and what to add to its command line. All of them share the guest's
/// memory with us, which has to be said, too.
pub fn lines(socket: &Path, id: &str) -> Vec<(&'static str, String)> {
    let path = socket.to_string_lossy();
    let id = format!("vub-{}", file_name(id));
    let doubled = path.replace(',', ",,");
    let qemu = |reconnect: &str| {
        let chardev = quote(&format!("socket,id={id},path={doubled},{reconnect}"));
        format!(
            "-object memory-backend-memfd,id=mem,size=1G,share=on -m 1G -machine memory-backend=mem -chardev {chardev} -device vhost-user-blk-pci,chardev={id}"
        )
    };
    let disk = quote(&format!("vhost_user=on,socket={path},num_queues=1,queue_size=128"));
    let device = quote(&format!("block,socket={path}"));
    let drive = serde_json::json!({ "drive_id": id, "socket": path, "is_root_device": false });
    let url = quote(&format!("http://localhost/drives/{id}"));
    vec![
        ("QEMU", qemu("reconnect-ms=1000")),
        // QEMU 11 does not know this option any more, and those before 9.2 not the other.
        ("QEMU before 9.2", qemu("reconnect=1")),
        ("libvirt (domain)", SHARED_MEMORY.to_owned()),
        ("libvirt (disk)", libvirt_xml::vhost_user(socket)),
        ("cloud-hypervisor", format!("--memory size=1G,shared=on --disk {disk}")),
        ("crosvm", format!("--vhost-user {device}")),
        (
            "Firecracker",
            format!("curl --unix-socket firecracker.sock -X PUT {url} -d {}", quote(&drive.to_string())),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_for_the_shell_and_for_the_monitor() {
        let lines = lines(Path::new("/run/a b,c.sock"), "disk");
        let names: Vec<_> = lines.iter().map(|(name, _)| *name).collect();
        let libvirt = ["libvirt (domain)", "libvirt (disk)"];
        let others = ["cloud-hypervisor", "crosvm", "Firecracker"];
        assert_eq!(names, [&["QEMU", "QEMU before 9.2"], &libvirt[..], &others].concat());
        for (line, reconnect) in lines.iter().zip(["reconnect-ms=1000", "reconnect=1"]) {
            let chardev = format!("'socket,id=vub-disk,path=/run/a b,,c.sock,{reconnect}'");
            assert!(line.1.contains(&chardev), "{}", line.1);
        }
        assert!(
            lines[6]
                .1
                .contains(r#"'{"drive_id":"vub-disk","socket":"/run/a b,c.sock","is_root_device":false}'"#)
        );
    }
}
