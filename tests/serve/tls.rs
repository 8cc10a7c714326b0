//! TLS: with it, only with it, and with clients' certificates where they are asked for.

use std::path::Path;

use black_box::peer::qemu_img;
use black_box::server::Start;
use black_box::{Run, Scratch, Server, cowhand};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::create;
use super::surroundings::uri;

/// Certificates as libnbd and QEMU want them: an authority, a server for localhost, a client.
pub fn certificates(directory: &Path) {
    let write = |name: &str, text: String| std::fs::write(directory.join(name), text).expect("a file");
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = authority.self_signed(&key).expect("a certificate");
    write("ca-cert.pem", certificate.pem());
    let issuer = Issuer::new(authority, key);
    for (who, purpose) in
        [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.extended_key_usages = vec![purpose];
        // QEMU 10 asks for the second, whatever the key.
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        write(&format!("{who}-cert.pem"), certificate.pem());
        write(&format!("{who}-key.pem"), key.serialize_pem());
    }
}

pub fn start(directory: &Scratch, path: &str, more: &[&str]) -> (Server, String) {
    let (cert, key) = (directory.name("server-cert.pem"), directory.name("server-key.pem"));
    let args = ["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, path];
    let mut server = Start::new(args).args(more).listening_on("/nowhere").spawn();
    let uri = server.wait_until(uri).unwrap_or_else(|| panic!("{}", server.stderr()));
    (server, uri)
}

pub fn port(uri: &str) -> String {
    let authority = uri.split('/').nth(2).expect("an authority");
    authority.rsplit(':').next().expect("a port").to_owned()
}

#[test]
fn clients_come_in_over_tls_and_not_without() {
    let scratch = Scratch::new();
    certificates(scratch.path());
    let path = create(&scratch, "disk.qcow2", "4M");
    let (server, uri) = start(&scratch, &path, &[]);
    assert!(uri.starts_with("nbds://"), "{uri}");
    let port = port(&uri);
    let directory = scratch.path().display();
    let with = format!("nbds://localhost:{port}/disk?tls-certificates={directory}");
    let reported = Run::new("nbdinfo").args(["--json", &with]).json();
    assert_eq!(reported["exports"][0]["export-size"], 4 << 20);
    assert_eq!(reported["TLS"], true, "{reported}");
    Run::new("nbdinfo").arg(format!("nbd://localhost:{port}/disk")).fails();

    let credentials = format!("tls-creds-x509,id=tls0,endpoint=client,dir={directory}");
    let export = format!("driver=nbd,host=localhost,port={port},export=disk,tls-creds=tls0");
    let seen = qemu_img(["info", "--output=json", "--object", &credentials, "--image-opts", &export]).json();
    assert_eq!(seen["virtual-size"], 4 << 20);
    let source = scratch.write("source.raw", &vec![0x42; 4 << 20]);
    Run::new("nbdcopy").arg(&source).arg(&with).ok();
    let back = scratch.file("back.raw");
    Run::new("nbdcopy").arg(&with).arg(&back).ok();
    assert!(std::fs::read(back).expect("a file") == vec![0x42; 4 << 20]);
    server.stop();
}

#[test]
fn a_client_without_a_certificate_stays_out_where_one_is_asked_for() {
    let scratch = Scratch::new();
    certificates(scratch.path());
    let path = create(&scratch, "disk.qcow2", "4M");
    let authority = scratch.name("ca-cert.pem");
    let (server, uri) = start(&scratch, &path, &["--tls-client-ca", &authority]);
    let port = port(&uri);
    let info = |directory: &Scratch| {
        let uri = format!("nbds://localhost:{port}/disk?tls-certificates={}", directory.path().display());
        Run::new("nbdinfo").arg(uri)
    };
    info(&scratch).ok();
    // Knows the authority and has no certificate.
    let nobody = Scratch::new();
    std::fs::copy(&authority, nobody.file("ca-cert.pem")).expect("a copy");
    info(&nobody).fails();
    // Has a certificate of another authority.
    let stranger = Scratch::new();
    certificates(stranger.path());
    std::fs::copy(&authority, stranger.file("ca-cert.pem")).expect("a copy");
    info(&stranger).fails();
    server.stop();
}

/// A disk of one cowhand below the tools of another, and behind its QEMU names.
#[test]
fn our_own_tools_come_in_over_tls_and_believe_no_other_server() {
    let scratch = Scratch::new();
    certificates(scratch.path());
    let path = create(&scratch, "disk.qcow2", "4M");
    let authority = scratch.name("ca-cert.pem");
    let (server, uri) = start(&scratch, &path, &["--tls-client-ca", &authority]);
    let (port, directory) = (port(&uri), scratch.path().display());
    let uri = format!("nbds://localhost:{port}/disk?tls-certificates={directory}");
    let source = scratch.write("source.raw", &vec![0x42; 4 << 20]);
    let source = source.to_str().expect("text");
    cowhand(["convert", "-n", "-f", "raw", "-O", "raw", "--verify", source, &uri]).ok();
    let object = format!("tls-creds-x509,id=t,dir={directory},endpoint=client");
    let drive = format!("driver=nbd,host=127.0.0.1,port={port},export=disk,tls-creds=t");
    let compare = |object: &str, drive: &str| {
        cowhand(["--object", object, "compare", "--image-opts", drive, &format!("driver=raw,file={source}")])
    };
    assert!(compare(&object, &format!("{drive},tls-hostname=localhost")).ok().contains("identical"));
    // The certificate is for localhost, by name alone.
    let said = compare(&object, &drive).fails();
    assert!(said.contains("certificate not valid for name"), "{said}");
    compare(&format!("{object},verify-peer=off"), &drive).ok();
    let said = cowhand(["info", &format!("nbd://localhost:{port}/disk")]).fails();
    assert!(said.contains("TLS") || said.contains("Tls"), "{said}");
    let stranger = Scratch::new();
    certificates(stranger.path());
    let said =
        cowhand(["info", &uri.replace(&directory.to_string(), &stranger.path().display().to_string())])
            .fails();
    assert!(said.contains("TLS: "), "{said}");
    server.stop();
}

#[test]
fn half_a_pair_of_key_and_certificate_is_an_error() {
    let scratch = Scratch::new();
    certificates(scratch.path());
    let path = create(&scratch, "disk.qcow2", "1M");
    let (cert, key) = (scratch.name("server-cert.pem"), scratch.name("server-key.pem"));
    assert!(Server::refuses(["--tls-cert", &cert, &path]).contains("--tls-key"));
    assert!(Server::refuses(["--tls-key", &key, &path]).contains("--tls-cert"));
    Server::refuses(["--tls-cert", &key, "--tls-key", &cert, &path]);
    let other = Scratch::new();
    certificates(other.path());
    Server::refuses(["--tls-cert", &cert, "--tls-key", &other.name("server-key.pem"), &path]);
}
