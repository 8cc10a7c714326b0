//! Lines to paste: an export as a disk of a libvirt domain.

use std::path::Path;

use monitor::listening::Address;

use super::paste::{ClientTls, Shown, host, reachable};

/// A child of `<domain>`: memory of the guest that a server of vhost-user can map.
pub const SHARED_MEMORY: &str =
    "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";

/// The disk over NBD. Certificates are found where libvirt's `qemu.conf` says.
pub fn nbd(address: &Address, export: Shown<'_>, tls: Option<&ClientTls>) -> String {
    let name = escaped(export.name);
    let (server, tls) = match (address, tls) {
        (Address::Unix(path), tls) => {
            let socket = escaped(&path.to_string_lossy());
            let tls = tls.map(|tls| format!(" tls='yes' tlsHostname='{}'", escaped(host(tls))));
            (format!("<host transport='unix' socket='{socket}'/>"), tls)
        }
        (Address::Tcp(address), tls) => {
            let place = tls.map_or_else(|| reachable(*address).ip().to_string(), |tls| host(tls).to_owned());
            let server = format!("<host name='{}' port='{}'/>", escaped(&place), address.port());
            (server, tls.map(|_| " tls='yes'".to_owned()))
        }
    };
    let discard = if export.discard && !export.read_only { " discard='unmap'" } else { "" };
    let read_only = if export.read_only { "<readonly/>" } else { "" };
    let tls = tls.unwrap_or_default();
    format!(
        "<disk type='network' device='disk'><driver name='qemu' type='raw'{discard}/><source protocol='nbd' name='{name}'{tls}>{server}</source>\
         <target dev='vda' bus='virtio'/>{read_only}</disk>"
    )
}

/// The disk over vhost-user-blk, of a domain with [`SHARED_MEMORY`].
pub fn vhost_user(socket: &Path) -> String {
    let path = escaped(&socket.to_string_lossy());
    format!(
        "<disk type='vhostuser' device='disk'><driver name='qemu' type='raw'/><source type='unix' path='{path}'>\
         <reconnect enabled='yes' timeout='1'/></source><target dev='vda' bus='virtio'/></disk>"
    )
}

/// As the value of an attribute. XML has no way to say other control characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&apos;"),
            '"' => escaped.push_str("&quot;"),
            '\t' | '\n' | '\r' => escaped.push_str(&format!("&#{};", u32::from(c))),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str) -> Shown<'_> {
        Shown { name, read_only: false, discard: false, one_of_several: false }
    }

    #[test]
    fn a_disk_has_its_server_and_what_guests_may_do() {
        let unix = Address::Unix("/run/a b'&<.sock".into());
        assert_eq!(
            nbd(&unix, Shown { discard: true, ..shown("d\"\n") }, None),
            "<disk type='network' device='disk'><driver name='qemu' type='raw' discard='unmap'/><source protocol='nbd' name='d&quot;&#10;'>\
             <host transport='unix' socket='/run/a b&apos;&amp;&lt;.sock'/></source><target dev='vda' bus='virtio'/></disk>"
        );
        let tcp = Address::Tcp("[::]:10809".parse().unwrap());
        let read_only = Shown { discard: true, read_only: true, ..shown("d") };
        let line = nbd(&tcp, read_only, None);
        assert!(line.contains("type='raw'/>") && line.contains("<readonly/>"), "{line}");
        assert!(line.contains("<host name='::1' port='10809'/>"), "{line}");
    }

    #[test]
    fn over_tls_the_disk_names_the_host_of_the_certificate() {
        let tls = ClientTls { host: Some("storage1".into()), directory: None };
        let tcp = Address::Tcp("0.0.0.0:1".parse().unwrap());
        let line = nbd(&tcp, shown("d"), Some(&tls));
        assert!(line.contains("name='d' tls='yes'><host name='storage1' port='1'/>"), "{line}");
        let line = nbd(&Address::Unix("/s".into()), shown("d"), Some(&tls));
        assert!(line.contains("name='d' tls='yes' tlsHostname='storage1'><host transport='unix'"), "{line}");
    }
}
