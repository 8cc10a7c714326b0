//! A catalogue to negotiate about, and a server's handshake driven over bytes.

use wire::nbd::limits::REQUEST_BYTES_MAX;
use wire::nbd::server::{Catalogue, Handshake, HandshakeError, Refusal, Session, Step, Tls};
use wire::nbd::{BlockSizes, ExportFlags, ExportInfo, OptionReplyHeader, OptionReplyKind};

pub struct TwoDisks;

pub fn disk(name: &str) -> ExportInfo {
    ExportInfo {
        name: name.into(),
        description: format!("the disk {name}"),
        size: 1 << 40,
        flags: ExportFlags::FLUSH
            .and_if(true, ExportFlags::FUA)
            .and_if(true, ExportFlags::TRIM)
            .and_if(true, ExportFlags::WRITE_ZEROES)
            .and_if(true, ExportFlags::CACHE),
        blocks: BlockSizes { minimum: 1, preferred: 4096, maximum: REQUEST_BYTES_MAX },
        allocation_depth: name == "a",
        bitmaps: if name == "a" { vec!["monday".into(), "tuesday".into()] } else { vec![] },
    }
}

impl Catalogue for TwoDisks {
    type Chosen = String;

    fn list(&self) -> Vec<(String, String)> {
        vec![("a".into(), "first".into()), ("b".into(), String::new())]
    }

    fn describe(&self, name: &str) -> Result<ExportInfo, Refusal> {
        match name {
            "" | "a" => Ok(disk("a")),
            "b" => Ok(disk("b")),
            _ => Err(Refusal::Unknown("no export has this name".to_owned())),
        }
    }

    fn choose(&self, name: &str) -> Result<(String, ExportInfo), Refusal> {
        self.describe(name).map(|export| (export.name.clone(), export))
    }
}

/// How a conversation ended.
#[derive(Debug)]
pub enum End {
    Waiting,
    StartTls,
    Ready(Box<Session<String>>),
    Done,
    Closed(HandshakeError),
}

pub struct Server {
    handshake: Handshake,
    pub greeting: Vec<u8>,
}

impl Server {
    pub fn new(tls: Tls) -> Self {
        let mut greeting = Vec::new();
        let handshake = Handshake::new(tls, &mut greeting);
        Server { handshake, greeting }
    }

    /// A server that has the client's flags already.
    pub fn greeted(tls: Tls) -> Self {
        let mut server = Self::new(tls);
        assert!(server.hear(&3_u32.to_be_bytes()).0.is_empty());
        server
    }

    pub fn tls_started(&mut self) {
        self.handshake.tls_started();
    }

    pub fn hear(&mut self, mut input: &[u8]) -> (Vec<u8>, End) {
        let mut out = Vec::new();
        loop {
            match self.handshake.step(input, &TwoDisks, &mut out) {
                Err(error) => return (out, End::Closed(error)),
                Ok((taken, step)) => {
                    input = &input[taken..];
                    match step {
                        Step::Need(more) => {
                            assert!(more > 0);
                            return (out, End::Waiting);
                        }
                        Step::Again => {}
                        Step::StartTls => return (out, End::StartTls),
                        Step::Ready(session) => return (out, End::Ready(Box::new(session))),
                        Step::Done => return (out, End::Done),
                    }
                }
            }
        }
    }

    /// The kinds of the option replies to `input`.
    pub fn answers(&mut self, input: &[u8]) -> Vec<OptionReplyKind> {
        let (out, _) = self.hear(input);
        replies(&out).into_iter().map(|(kind, _)| kind).collect()
    }
}

pub fn replies(mut bytes: &[u8]) -> Vec<(OptionReplyKind, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<{ OptionReplyHeader::BYTES }>() {
        let header = OptionReplyHeader::decode(header).expect("an option reply");
        let (data, rest) = rest.split_at(header.len as usize);
        found.push((header.kind, data.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    found
}

/// The bytes of an option with any data.
pub fn raw_option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}
