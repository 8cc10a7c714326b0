//! Servers that break the protocol: each request ends with an error that says how, and no byte that was not sent is taken for data.

use std::io::Write;

use storage::Storage;

use crate::nbd::support::{
    FLAGS, Line, Place, READ, Request, STATUS, chunk, open, placed, read, run, simple,
};

const SIZE: u64 = 1 << 20;

/// The error of a read of 4096 bytes at 4096 that `reply` answers.
fn read_answered(reply: impl Fn(&Request) -> Vec<u8> + Send + 'static) -> String {
    let place = Place::new();
    place.serve(move |_, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        while let Some(asked) = line.asked() {
            line.send(&reply(&asked));
        }
    });
    run(async {
        let storage = open(place.options()).await;
        match read(&storage, 4096, 4096).await {
            Ok(bytes) => format!("{} bytes", bytes.len()),
            Err(error) => error.to_string(),
        }
    })
}

#[test]
fn a_reply_that_cannot_be_ends_the_connection_and_says_why() {
    let data = |offset: u64, len: usize| placed(offset, &vec![7; len]);
    type Liar = Box<dyn Fn(&Request) -> Vec<u8> + Send>;
    let table: Vec<(&str, Liar)> = vec![
        ("4096 bytes", Box::new(move |asked| chunk(asked.cookie, 1, true, &data(4096, 4096)))),
        (
            "4096 bytes",
            Box::new(move |asked| {
                let parts =
                    [data(6144, 2048), [&4096_u64.to_be_bytes()[..], &2048_u32.to_be_bytes()].concat()];
                [chunk(asked.cookie, 1, false, &parts[0]), chunk(asked.cookie, 2, true, &parts[1])].concat()
            }),
        ),
        ("cookie", Box::new(move |asked| chunk(asked.cookie + 1, 1, true, &data(4096, 4096)))),
        ("cookie", Box::new(move |asked| chunk(asked.cookie ^ 1 << 33, 1, true, &data(4096, 4096)))),
        ("lacks some", Box::new(move |asked| chunk(asked.cookie, 1, true, &data(4096, 4095)))),
        ("lacks some", Box::new(|asked| chunk(asked.cookie, 0, true, b""))),
        ("4097 bytes at 4096", Box::new(move |asked| chunk(asked.cookie, 1, true, &data(4096, 4097)))),
        ("4096 bytes at 0", Box::new(move |asked| chunk(asked.cookie, 1, true, &data(0, 4096)))),
        (
            "bytes at 18446744073709551615",
            Box::new(move |asked| chunk(asked.cookie, 1, true, &data(u64::MAX, 4096))),
        ),
        (
            "1 bytes at 4097",
            Box::new(move |asked| {
                let parts = [
                    chunk(asked.cookie, 1, false, &data(4096, 2)),
                    chunk(asked.cookie, 1, true, &data(4097, 1)),
                ];
                parts.concat()
            }),
        ),
        ("data without a place", Box::new(|asked| chunk(asked.cookie, 1, true, &[0; 7]))),
        ("0 bytes at 4096", Box::new(move |asked| chunk(asked.cookie, 1, false, &data(4096, 0)))),
        ("malformed", Box::new(|asked| chunk(asked.cookie, 2, true, &placed(4096, &[0; 4])))),
        ("said nothing", Box::new(|asked| chunk(asked.cookie, 0, false, b""))),
        ("type 77", Box::new(|asked| chunk(asked.cookie, 77, true, b""))),
        (
            "context 1, which was not asked",
            Box::new(|asked| chunk(asked.cookie, 5, true, &[0, 0, 0, 1, 0, 0, 16, 0, 0, 0, 0, 0])),
        ),
        ("outside of a chunk", Box::new(|asked| simple(asked.cookie, 0))),
        ("starts with 0x00000000", Box::new(|_| vec![0; 64])),
        (
            "2147483647",
            Box::new(|asked| [&chunk(asked.cookie, 1, true, b"")[..16], &i32::MAX.to_be_bytes()].concat()),
        ),
        (
            "payload bytes; allowed",
            Box::new(|asked| {
                [&chunk(asked.cookie, 1 << 15 | 1, true, b"")[..16], &u32::MAX.to_be_bytes()].concat()
            }),
        ),
        (
            "4194304 bytes; allowed",
            Box::new(|asked| {
                [&chunk(asked.cookie, 1 << 15 | 1, true, b"")[..16], &(4_u32 << 20).to_be_bytes()].concat()
            }),
        ),
        (
            "more than 16 errors",
            Box::new(|asked| chunk(asked.cookie, 1 << 15 | 1, false, &[0, 0, 0, 5, 0, 0]).repeat(100)),
        ),
        (
            "input/output error (EIO): no",
            Box::new(|asked| chunk(asked.cookie, 1 << 15 | 9, true, b"\0\0\0\x05\0\x02no")),
        ),
        ("no space (ENOSPC)", Box::new(|asked| simple(asked.cookie, 28))),
    ];
    for (at, (words, reply)) in table.into_iter().enumerate() {
        let found = read_answered(reply);
        assert!(found.contains(words), "{at}: {found:?} lacks {words:?}");
    }
}

/// A server closed the connection while a reply was half there; the client took the rest of its buffer for data.
#[test]
fn a_reply_that_ends_in_the_middle_fails() {
    for kept in [0, 3, 19, 27, 28, 1000] {
        let place = Place::new();
        place.serve(move |_, stream| {
            let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
            let asked = line.asked().unwrap();
            line.send(&chunk(asked.cookie, 1, true, &placed(0, &[7; 65536]))[..kept]);
        });
        let error = run(async { read(&open(place.options()).await, 0, 65536).await }).unwrap_err();
        assert!(error.to_string().contains("the server closed it"), "{kept}: {error}");
    }
}

#[test]
fn replies_in_any_order_reach_who_asked() {
    let place = Place::new();
    place.serve(|_, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        let mut asked: Vec<Request> = (0..8).map(|_| line.asked().unwrap()).collect();
        asked.reverse();
        for asked in asked {
            assert_eq!(asked.number, READ);
            line.data(&asked, &vec![(asked.offset >> 16) as u8; asked.len as usize]);
        }
        line.asked();
    });
    run(async {
        let storage = open(place.options()).await;
        let lens = [1, 512, 4096, 65536, 5, 60000, 16 << 10, 8];
        let reads = lens.iter().enumerate().map(|(at, &len)| read(&storage, (at as u64) << 16, len));
        let found = futures_util::future::join_all(reads).await;
        for (at, (found, len)) in found.into_iter().zip(lens).enumerate() {
            assert_eq!(found.unwrap(), vec![at as u8; len]);
        }
    });
}

#[test]
fn extents_of_a_liar_stay_inside_the_disk() {
    let place = Place::new();
    place.serve(|_, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        while let Some(asked) = line.asked() {
            assert_eq!(asked.number, STATUS);
            let mut payload = vec![0, 0, 0, 1];
            payload.extend(u32::MAX.to_be_bytes());
            payload.extend(3_u32.to_be_bytes());
            line.chunk(asked.cookie, 5, true, &payload);
        }
    });
    run(async {
        let storage = open(place.options()).await;
        let extent = storage.extent(4096, u64::MAX).await.unwrap();
        assert_eq!((extent.len, extent.kind), (SIZE - 4096, storage::ExtentKind::Hole));
        assert!(storage.extent(SIZE, 1).await.is_err());
    });
}

#[test]
fn an_export_that_cannot_be_is_refused_when_it_is_opened() {
    for (hello, words) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "does not greet as a newstyle NBD server"),
        (b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0", "the server closed it"),
        (b"", "the server closed it"),
    ] {
        let place = Place::new();
        place.serve(move |_, mut stream| stream.write_all(hello).unwrap());
        let options = remote::nbd::Options { open_timeout: std::time::Duration::ZERO, ..place.options() };
        let refused = run(remote::nbd::NbdStorage::open(options)).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    for (size, flags, words) in [
        (u64::MAX, FLAGS, "the export has 18446744073709551615 bytes; allowed are"),
        (SIZE, FLAGS | 2, "the export is read-only"),
    ] {
        let place = Place::new();
        place.serve(move |_, stream| drop(Line::shake_hands(stream, size, flags)));
        let options = remote::nbd::Options { open_timeout: std::time::Duration::ZERO, ..place.options() };
        let refused = run(remote::nbd::NbdStorage::open(options)).unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
}
