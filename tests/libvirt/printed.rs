//! The XML that a server prints, in a machine that libvirt starts.

use black_box::peer::qemu_img;
use black_box::server::Start;

use super::daemon::Libvirt;

/// A machine without a guest.
fn machine(memory: &str, disks: &str) -> String {
    format!(
        "<domain type='qemu'><name>p</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>{memory}\
         <os><type arch='x86_64' machine='pc'>hvm</type></os>\
         <cpu mode='custom'><model>qemu64</model><feature policy='disable' name='cx16'/></cpu><devices>{disks}\
         <controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"
    )
}

#[test]
fn a_machine_starts_with_the_xml_that_a_server_prints() {
    let libvirt = Libvirt::start();
    let odd = "it's & <a>, \"b\"";
    std::fs::create_dir(libvirt.file(odd)).expect("a directory");
    let [image, socket] = ["a'b.qcow2", "n&bd"].map(|name| libvirt.name(&format!("{odd}/{name}")));
    // libvirt does not escape this one where it describes a machine that runs.
    let vhost = libvirt.name("vhost");
    qemu_img(["create", "-q", "-f", "qcow2", &image, "8M"]).ok();
    let start = Start::new(["--socket", &socket, "--vhost-user-blk", &vhost, &image]).listening_on(&socket);
    let mut server = start.spawn();
    let printed =
        server.wait_until(|server| server.stdout().contains("Firecracker").then(|| server.stdout()));
    let printed = printed.unwrap_or_else(|| panic!("{}{}", server.stdout(), server.stderr()));
    let line = |name: &str| {
        let line = printed.lines().find_map(|line| line.trim_start().strip_prefix(name));
        line.unwrap_or_else(|| panic!("no line {name}: {printed}")).trim().to_owned()
    };
    let disks = line("libvirt  ") + &line("libvirt (disk)").replace("'vda'", "'vdb'");
    libvirt.describe("create --paused", &machine(&line("libvirt (domain)"), &disks));
    assert_eq!(libvirt.ok("domstate p").trim(), "paused");
    for disk in ["vda", "vdb"] {
        assert!(libvirt.ok("domblklist p").contains(disk));
    }
    let size = libvirt.ok("domblkinfo p vda");
    assert!(size.contains("8388608"), "{size}");
    libvirt.ok("destroy p");
    server.stop();
}
