//! Clients that have a certificate are admitted by its name: `authz-simple` and `authz-list`, as by QEMU's daemon.

use std::path::Path;

use black_box::{Run, Scratch};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use super::{Server, images, ours};

/// The name of the client's certificate, in the order of the certificate.
const NAME: [(DnType, &str); 3] = [
    (DnType::LocalityName, "Town"),
    (DnType::OrganizationName, "Acme, Inc"),
    (DnType::CommonName, "guest one"),
];

/// The group ffdhe2048 (RFC 7919, appendix A.1): QEMU looks for primes of its own where it finds none, for many seconds on a busy machine.
const DH_PARAMETERS: &str = "\
-----BEGIN DH PARAMETERS-----
MIIBCAKCAQEA//////////+t+FRYortKmq/cViAnPTzx2LnFg84tNpWp4TZBFGQz
+8yTnc4kmz75fS/jY2MMddj2gbICrsRhetPfHtXV/WVhJDP1H18GbtCFY2VVPe0a
87VXE15/V8k1mE8McODmi3fipona8+/och3xWKE2rec1MKzKT0g6eXq8CrGCsyT7
YdEIqUuyyOP7uWrat2DX9GgdT0Kj3jlN9K5W7edjcrsZCwenyO4KbXCeAvzhzffi
7MA0BM0oNC9hkXL+nOmFg/+OTxIy7vKBg8P+OxtMb61zO7X8vC7CIAXFjvGDfRaD
ssbzSibBsu/6iGtCOGEoXJf//////////wIBAg==
-----END DH PARAMETERS-----
";

/// An authority, a server for localhost, and a client called [`NAME`].
pub fn certificates(directory: &Path) {
    let write = |name: &str, text: String| std::fs::write(directory.join(name), text).expect("a file");
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let certificate = authority.self_signed(&key).expect("a certificate");
    write("ca-cert.pem", certificate.pem());
    write("dh-params.pem", DH_PARAMETERS.to_owned());
    let issuer = Issuer::new(authority, key);
    for (who, purpose) in
        [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        params.extended_key_usages = vec![purpose];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in NAME {
            params.distinguished_name.push(kind, value);
        }
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        write(&format!("{who}-cert.pem"), certificate.pem());
        write(&format!("{who}-key.pem"), key.serialize_pem());
    }
}

/// Whether the client sees the disk that `program` serves to those whom the object `z` admits.
fn is_admitted(program: &Path, object: &str) -> bool {
    let scratch: Scratch = images();
    certificates(scratch.path());
    let directory = scratch.path().display();
    let credentials = format!("tls-creds-x509,id=t,endpoint=server,dir={directory},verify-peer=on");
    let server = format!("addr.type=unix,addr.path={},tls-creds=t,tls-authz=z", scratch.name("s"));
    let args = [
        ["--object", &credentials],
        ["--object", object],
        ["--blockdev", "driver=raw,node-name=n,file.driver=file,file.filename=disk.raw"],
        ["--nbd-server", &server],
        ["--export", "nbd,id=e,node-name=n,name=r"],
    ]
    .concat();
    let server = Server::start(program, scratch.path(), &args);
    let client = format!("tls-creds-x509,id=t,endpoint=client,dir={directory}");
    let drive = format!(
        "driver=nbd,server.type=unix,server.path={},export=r,tls-creds=t,tls-hostname=localhost",
        server.socket.display()
    );
    let info = ["info", "--object", &client, "--image-opts", &drive];
    let outcome = Run::new("qemu-img").args(info).outcome();
    outcome.status.success()
}

#[test]
fn clients_with_a_certificate_are_admitted_by_its_name_as_by_qemus() {
    // A comma inside a value of the command line is doubled.
    let name = r"L=Town,,O=Acme\,, Inc,,CN=guest one";
    let reversed = r"CN=guest one,,O=Acme\,, Inc,,L=Town";
    let table = [
        format!("authz-simple,id=z,identity={name}"),
        format!("authz-simple,id=z,identity={reversed}"),
        "authz-simple,id=z,identity=CN=other".to_owned(),
        format!("authz-list,id=z,policy=deny,rules.0.match={name},rules.0.policy=allow"),
        format!("authz-list,id=z,policy=deny,rules.0.match={reversed},rules.0.policy=allow"),
        "authz-list,id=z,policy=allow,rules.0.match=*Acme*,rules.0.policy=deny,rules.0.format=glob"
            .to_owned(),
        "authz-list,id=z,policy=allow,rules.0.match=*Acme*,rules.0.policy=deny,rules.0.format=exact"
            .to_owned(),
        "authz-list,id=z".to_owned(),
        // The rules of another id.
        "authz-list,id=y,policy=allow".to_owned(),
    ];
    let look = |program: &Path| table.iter().map(|object| is_admitted(program, object)).collect::<Vec<_>>();
    let ours = look(&ours("qemu-storage-daemon"));
    assert_eq!(ours, look(Path::new("qemu-storage-daemon")));
    assert_eq!(ours.iter().filter(|admitted| **admitted).count(), 3, "{ours:?}");
}
