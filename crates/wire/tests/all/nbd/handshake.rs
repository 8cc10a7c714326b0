//! Both halves of the handshake, on bytes.

use crate::nbd::common;

use common::{End, Server, raw_option, replies};
use wire::nbd::server::{HandshakeError, Tls};
use wire::nbd::{
    Context, Dialect, ExportFlags, InfoKind, OptionKind, OptionReplyKind, Selected, client, limits,
};

fn go(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    client::info(&mut out, OptionKind::Go, name, &[]);
    out
}

fn plain(option: OptionKind) -> Vec<u8> {
    raw_option(option.to_wire(), &[])
}

fn meta(option: OptionKind, name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    client::meta_contexts(&mut out, option, name, queries);
    out
}

/// Runs both halves against each other, handing over `pace` bytes at a time.
fn negotiate(
    wanted: client::ExportRequest,
    tls: Tls,
    pace: usize,
) -> (client::Negotiated, wire::nbd::server::Session<String>) {
    let mut server = Server::new(tls);
    let mut client = client::Handshake::new(wanted);
    let (mut to_client, mut to_server) = (server.greeting.clone(), Vec::new());
    let (mut heard_by_client, mut heard_by_server) = (Vec::new(), Vec::new());
    let (mut negotiated, mut session, mut tls_wanted) = (None, None, false);
    for _ in 0..100_000 {
        heard_by_client.extend(to_client.drain(..pace.min(to_client.len())));
        let (taken, step) = client.step(&heard_by_client, &mut to_server).expect("a server that can");
        heard_by_client.drain(..taken);
        match step {
            client::Step::Ready(agreed) => negotiated = Some(agreed),
            client::Step::StartTls => {
                assert!(tls_wanted);
                client.tls_started(&mut to_server);
            }
            client::Step::Need(_) | client::Step::Again => {}
        }
        heard_by_server.extend(to_server.drain(..pace.min(to_server.len())));
        if session.is_none() {
            let (out, end) = server.hear(&heard_by_server);
            if !out.is_empty() || !matches!(end, End::Waiting) {
                heard_by_server.clear();
            }
            to_client.extend(out);
            match end {
                End::Waiting => {}
                End::StartTls => {
                    tls_wanted = true;
                    server.tls_started();
                }
                End::Ready(ready) => session = Some(*ready),
                End::Done | End::Closed(_) => panic!("{end:?}"),
            }
            if heard_by_server.len() == 4 {
                heard_by_server.clear();
            }
        }
        if let (Some(_), Some(_)) = (&negotiated, &session) {
            break;
        }
    }
    (negotiated.expect("agreement"), session.expect("agreement"))
}

fn wanted(dialect: Dialect) -> client::ExportRequest {
    client::ExportRequest {
        export: "a".into(),
        tls: false,
        dialect,
        contexts: vec!["base:allocation".into()],
    }
}

#[test]
fn both_halves_agree_on_every_dialect() {
    for dialect in [Dialect::Simple, Dialect::Structured, Dialect::Extended] {
        let (negotiated, session) = negotiate(wanted(dialect), Tls::Off, usize::MAX);
        assert_eq!((negotiated.dialect, session.dialect), (dialect, dialect));
        assert_eq!(negotiated.size, 1 << 40);
        assert_eq!(negotiated.flags, session.export.flags);
        assert_eq!(negotiated.flags.has(ExportFlags::DF), dialect >= Dialect::Structured);
        assert_eq!(negotiated.flags.has(ExportFlags::BLOCK_STATUS_PAYLOAD), dialect == Dialect::Extended);
        let contexts: &[Selected] = if dialect == Dialect::Simple {
            &[]
        } else {
            &[Selected { id: 1, context: Context::Allocation }]
        };
        assert_eq!(session.contexts, contexts);
        assert_eq!(negotiated.contexts.len(), contexts.len());
    }
}

#[test]
fn a_client_that_wants_tls_gets_it_first() {
    let wanted = client::ExportRequest { tls: true, ..wanted(Dialect::Extended) };
    for tls in [Tls::Allowed, Tls::Required] {
        let (negotiated, _) = negotiate(wanted.clone(), tls, usize::MAX);
        assert_eq!(negotiated.dialect, Dialect::Extended);
    }
}

#[test]
fn a_message_cut_anywhere_is_the_same_message() {
    let message = go("b");
    for cut in 0..message.len() {
        let mut server = Server::greeted(Tls::Off);
        let (out, end) = server.hear(&message[..cut]);
        assert!(out.is_empty() && matches!(end, End::Waiting), "at {cut}: {end:?}");
        assert!(matches!(server.hear(&message).1, End::Ready(_)));
    }
}

#[test]
fn export_name_is_answered_with_or_without_zeroes_as_agreed() {
    for (flags, bytes) in [(1_u32, 134), (3, 10), (0, 134)] {
        let mut server = Server::new(Tls::Off);
        server.hear(&flags.to_be_bytes());
        let (out, end) = server.hear(&raw_option(1, b"b"));
        assert!(matches!(end, End::Ready(session) if session.chosen == "b"));
        assert_eq!(out.len(), bytes);
        assert_eq!(out[..8], (1_u64 << 40).to_be_bytes());
    }
}

#[test]
fn an_option_that_cannot_be_answered_closes_the_connection() {
    let mut server = Server::greeted(Tls::Off);
    let (out, end) = server.hear(&raw_option(1, b"nope"));
    assert!(out.is_empty());
    assert!(matches!(end, End::Closed(HandshakeError::Unanswerable { option: OptionKind::ExportName, .. })));

    let mut old_client = Server::new(Tls::Off);
    old_client.hear(&0_u32.to_be_bytes());
    assert!(matches!(old_client.hear(&go("a")).1, End::Closed(HandshakeError::Unanswerable { .. })));

    let mut extended = Server::greeted(Tls::Off);
    extended.hear(&plain(OptionKind::ExtendedHeaders));
    assert!(matches!(extended.hear(&raw_option(1, b"a")).1, End::Closed(_)));
}

#[test]
fn bad_options_get_the_replies_that_other_servers_give() {
    use OptionReplyKind as Reply;
    let cases: &[(&[u8], Reply)] = &[
        (&raw_option(99, b"x"), Reply::Unsupported),
        (&raw_option(3, b"x"), Reply::Invalid),
        (&raw_option(8, b"x"), Reply::Invalid),
        (&raw_option(11, b"x"), Reply::Invalid),
        (&raw_option(5, b""), Reply::Policy),
        (&raw_option(5, b"x"), Reply::Invalid),
        (&raw_option(7, b""), Reply::Invalid),
        (&raw_option(7, &[0, 0, 0, 9, b'a', 0, 0]), Reply::Invalid),
        (&raw_option(7, &[0, 0, 0, 1, b'a', 0, 1]), Reply::Invalid),
        (&raw_option(7, &[0, 0, 0, 1, 0xff, 0, 0]), Reply::Invalid),
        (&go("nope"), Reply::UnknownExport),
        (&go(&"n".repeat(5000)), Reply::Invalid),
        (&meta(OptionKind::SetMetaContext, "a", &["base:allocation"]), Reply::Invalid),
        (&meta(OptionKind::ListMetaContext, "a", &[]), Reply::Invalid),
    ];
    for (option, expected) in cases {
        assert_eq!(Server::greeted(Tls::Off).answers(option), [*expected]);
    }
}

#[test]
fn structured_replies_cannot_follow_extended_headers() {
    let mut server = Server::greeted(Tls::Off);
    let structured = plain(OptionKind::StructuredReply);
    let extended = plain(OptionKind::ExtendedHeaders);
    assert_eq!(server.answers(&structured), [OptionReplyKind::Ack]);
    assert_eq!(server.answers(&structured), [OptionReplyKind::Invalid]);
    assert_eq!(server.answers(&extended), [OptionReplyKind::Ack]);
    assert_eq!(server.answers(&extended), [OptionReplyKind::Invalid]);
    assert_eq!(server.answers(&structured), [OptionReplyKind::ExtendedHeadersRequired]);
}

#[test]
fn nothing_but_starttls_and_abort_passes_where_tls_is_required() {
    let mut server = Server::greeted(Tls::Required);
    for option in [go("a"), plain(OptionKind::List), plain(OptionKind::StructuredReply), raw_option(99, b"")]
    {
        assert_eq!(server.answers(&option), [OptionReplyKind::TlsRequired]);
    }
    assert!(matches!(server.hear(&raw_option(1, b"a")).1, End::Closed(_)));
    assert!(matches!(Server::greeted(Tls::Required).hear(&plain(OptionKind::Abort)).1, End::Done));
}

#[test]
fn what_was_agreed_before_tls_is_forgotten() {
    let mut server = Server::greeted(Tls::Allowed);
    server.hear(&plain(OptionKind::StructuredReply));
    server.hear(&meta(OptionKind::SetMetaContext, "a", &["base:allocation"]));
    assert!(matches!(server.hear(&plain(OptionKind::StartTls)).1, End::StartTls));
    server.tls_started();
    assert_eq!(server.answers(&plain(OptionKind::StartTls)), [OptionReplyKind::Invalid]);
    let (_, end) = server.hear(&go("a"));
    let End::Ready(session) = end else { panic!("{end:?}") };
    assert_eq!((session.dialect, session.contexts), (Dialect::Simple, vec![]));
}

#[test]
fn plain_bytes_behind_starttls_never_become_part_of_the_encrypted_stream() {
    let mut message = plain(OptionKind::StartTls);
    message.extend(go("a"));
    let (_, end) = Server::greeted(Tls::Allowed).hear(&message);
    assert!(matches!(end, End::Closed(HandshakeError::BytesBeforeTls)));
}

#[test]
fn unknown_client_flags_close_the_connection() {
    let (_, end) = Server::new(Tls::Off).hear(&7_u32.to_be_bytes());
    assert!(matches!(end, End::Closed(HandshakeError::ClientFlags { found: 7 })));
}

#[test]
fn the_list_names_every_export() {
    let (out, _) = Server::greeted(Tls::Off).hear(&plain(OptionKind::List));
    let replies = replies(&out);
    assert_eq!(client::listed_name(&replies[0].1), Ok((&b"a"[..], &b"first"[..])));
    assert_eq!(client::listed_name(&replies[1].1), Ok((&b"b"[..], &b""[..])));
    assert_eq!(replies[2].0, OptionReplyKind::Ack);
}

#[test]
fn info_tells_what_is_asked_and_selects_nothing() {
    let mut server = Server::greeted(Tls::Off);
    let mut message = Vec::new();
    client::info(&mut message, OptionKind::Info, "", &[InfoKind::Name, InfoKind::Description]);
    let (out, end) = server.hear(&message);
    assert!(matches!(end, End::Waiting));
    let kinds: Vec<u8> = replies(&out).iter().filter_map(|(_, data)| data.get(1).copied()).collect();
    assert_eq!(kinds, [1, 2, 3, 0]);
}

#[test]
fn info_reports_that_contexts_can_be_chosen_among() {
    let mut server = Server::greeted(Tls::Off);
    server.hear(&plain(OptionKind::ExtendedHeaders));
    let mut message = Vec::new();
    client::info(&mut message, OptionKind::Info, "", &[]);
    let (out, _) = server.hear(&message);
    let export = replies(&out).into_iter().find(|(_, data)| data.starts_with(&[0, 0])).expect("an export").1;
    let flags = ExportFlags::from_wire(u16::from_be_bytes([export[10], export[11]]));
    assert!(flags.has(ExportFlags::BLOCK_STATUS_PAYLOAD));
}

fn context_names(out: &[u8]) -> Vec<(u32, String)> {
    let contexts = replies(out).into_iter().filter(|(kind, _)| *kind == OptionReplyKind::MetaContext);
    contexts
        .map(|(_, data)| {
            let (id, name) = data.split_first_chunk::<4>().expect("an id");
            (u32::from_be_bytes(*id), String::from_utf8(name.to_vec()).expect("a name"))
        })
        .collect()
}

#[test]
fn listing_contexts_understands_wildcards_and_selecting_does_not() {
    let all =
        ["base:allocation", "qemu:allocation-depth", "qemu:dirty-bitmap:monday", "qemu:dirty-bitmap:tuesday"];
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &all),
        (&["base:"], &all[..1]),
        (&["qemu:"], &all[1..]),
        (&["qemu:dirty-bitmap:"], &all[2..]),
        (&["qemu:dirty-bitmap:tuesday", "other:"], &all[3..]),
        (&["nothing"], &[]),
    ];
    let mut server = Server::greeted(Tls::Off);
    server.hear(&plain(OptionKind::StructuredReply));
    for (queries, expected) in cases {
        let (out, _) = server.hear(&meta(OptionKind::ListMetaContext, "a", queries));
        let names: Vec<String> = context_names(&out).into_iter().map(|(_, name)| name).collect();
        assert_eq!(&names, expected);
        let (out, _) = server.hear(&meta(OptionKind::SetMetaContext, "a", queries));
        let exact: Vec<_> = queries.iter().filter(|query| all.contains(query)).collect();
        assert_eq!(context_names(&out).len(), exact.len());
    }
}

#[test]
fn contexts_hold_for_the_export_they_were_selected_for() {
    let mut server = Server::greeted(Tls::Off);
    server.hear(&plain(OptionKind::StructuredReply));
    let queries = ["qemu:dirty-bitmap:monday", "base:allocation", "base:allocation"];
    let (out, _) = server.hear(&meta(OptionKind::SetMetaContext, "", &queries));
    assert_eq!(context_names(&out), [(1, "qemu:dirty-bitmap:monday".into()), (2, "base:allocation".into())]);
    let End::Ready(session) = server.hear(&go("b")).1 else { panic!("refused") };
    assert_eq!(session.contexts, []);

    let mut server = Server::greeted(Tls::Off);
    server.hear(&plain(OptionKind::StructuredReply));
    server.hear(&meta(OptionKind::SetMetaContext, "", &queries));
    let End::Ready(session) = server.hear(&go("a")).1 else { panic!("refused") };
    assert_eq!(session.contexts.len(), 2);
}

#[test]
fn a_failed_selection_selects_nothing() {
    let mut server = Server::greeted(Tls::Off);
    server.hear(&plain(OptionKind::StructuredReply));
    server.hear(&meta(OptionKind::SetMetaContext, "a", &["base:allocation"]));
    server.hear(&raw_option(10, b"short"));
    let End::Ready(session) = server.hear(&go("a")).1 else { panic!("refused") };
    assert_eq!(session.contexts, []);
}

#[test]
fn too_much_is_refused_and_the_connection_lives_on() {
    let mut server = Server::greeted(Tls::Off);
    server.hear(&plain(OptionKind::StructuredReply));
    let many = vec!["x"; limits::QUERIES_MAX as usize + 1];
    let too_many = meta(OptionKind::ListMetaContext, "a", &many);
    assert_eq!(server.answers(&too_many), [OptionReplyKind::TooBig]);
    let long = raw_option(3, &vec![0; limits::OPTION_BYTES_MAX as usize + 1]);
    assert_eq!(server.answers(&long), [OptionReplyKind::TooBig]);
    assert!(matches!(server.hear(&go("a")).1, End::Ready(_)));

    let mut header = raw_option(3, &[]);
    header[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    let (_, end) = Server::greeted(Tls::Off).hear(&header);
    assert!(matches!(end, End::Closed(HandshakeError::OptionTooLong { .. })));

    let mut server = Server::greeted(Tls::Off);
    for _ in 0..limits::OPTIONS_MAX {
        assert_eq!(server.answers(&raw_option(77, b"")), [OptionReplyKind::Unsupported]);
    }
    assert!(matches!(server.hear(&raw_option(77, b"")).1, End::Closed(HandshakeError::TooManyOptions)));
}

#[test]
fn a_client_falls_back_to_what_an_old_server_has() {
    let refuse = |option: u32| {
        let mut reply = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
        for field in [option, OptionReplyKind::Unsupported.to_wire(), 0] {
            reply.extend(field.to_be_bytes());
        }
        reply
    };
    let mut greeting = b"NBDMAGICIHAVEOPT".to_vec();
    greeting.extend(3_u16.to_be_bytes());
    let mut client = client::Handshake::new(wanted(Dialect::Extended));
    let mut sent = Vec::new();
    for message in [greeting, refuse(11), refuse(8), refuse(7)] {
        assert_eq!(client.step(&message, &mut sent), Ok((message.len(), client::Step::Again)));
    }
    assert!(sent.ends_with(&raw_option(1, b"a")));
    let mut answer = 512_u64.to_be_bytes().to_vec();
    answer.extend(3_u16.to_be_bytes());
    let Ok((10, client::Step::Ready(agreed))) = client.step(&answer, &mut sent) else { panic!("not ready") };
    assert_eq!((agreed.size, agreed.dialect, agreed.contexts), (512, Dialect::Simple, vec![]));
}

/// Servers from before 2011, and servers made to test clients.
#[test]
fn an_oldstyle_server_is_taken_as_it_is_and_has_no_names() {
    let mut greeting = b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53".to_vec();
    greeting.extend(4096_u64.to_be_bytes());
    greeting.extend([0, 0, 0, 3]);
    greeting.resize(152, 0);
    let nameless = client::ExportRequest { export: String::new(), ..wanted(Dialect::Extended) };
    let mut sent = Vec::new();
    for cut in [18, 100] {
        let mut client = client::Handshake::new(nameless.clone());
        assert_eq!(client.step(&greeting[..cut], &mut sent), Ok((0, client::Step::Need(152 - cut))));
        let Ok((152, client::Step::Ready(agreed))) = client.step(&greeting, &mut sent) else {
            panic!("not ready")
        };
        let expected = ExportFlags::from_wire(3);
        assert_eq!((agreed.size, agreed.flags, agreed.dialect), (4096, expected, Dialect::Simple));
    }
    let refused = |wanted| client::Handshake::new(wanted).step(&greeting, &mut Vec::new()).unwrap_err();
    let named = client::ExportRequest { export: "a".to_owned(), ..nameless.clone() };
    assert_eq!(refused(named), client::HandshakeError::Nameless("a".to_owned()));
    let encrypted = client::ExportRequest { tls: true, ..nameless };
    assert_eq!(refused(encrypted), client::HandshakeError::TooOld(OptionKind::StartTls));
    assert!(sent.is_empty(), "the client sends nothing");
}

#[test]
fn a_client_says_what_the_server_refused_and_why() {
    let mut client =
        client::Handshake::new(client::ExportRequest { export: "nope".into(), ..wanted(Dialect::Simple) });
    let mut server = Server::new(Tls::Off);
    let mut sent = Vec::new();
    client.step(&server.greeting.clone(), &mut sent).expect("a greeting");
    let (answer, _) = server.hear(&sent);
    let refused = client.step(&answer, &mut sent).expect_err("there is no such export");
    assert!(matches!(
        refused,
        client::HandshakeError::Refused { option: OptionKind::Go, kind: OptionReplyKind::UnknownExport, .. }
    ));
}
