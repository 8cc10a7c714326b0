//! Servers that take requests and do not answer.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use remote::nbd::Options;
use storage::Storage;

use crate::nbd::support::{FLAGS, Line, Place, READ, open, read, run, write};

const SIZE: u64 = 4 << 20;

/// A server's process was stopped in its middle. Its connection stayed open, and the guest's requests waited for ever.
#[test]
fn a_request_that_is_not_answered_in_time_is_an_error_and_so_are_the_next() {
    let place = Place::new();
    place.serve(|at, stream| {
        if at == 0 {
            let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
            while line.asked().is_some() {}
        } else {
            // Not even a greeting.
            std::thread::sleep(Duration::from_secs(60));
            drop(stream);
        }
    });
    let options = Options { remote_timeout: Some(Duration::from_secs(1)), ..place.options() };
    run(async {
        let storage = open(options).await;
        let began = Instant::now();
        let error = read(&storage, 0, 512).await.unwrap_err();
        assert!(error.to_string().contains("no answer within 1 s (remote-timeout)"), "{error}");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        write(&storage, 0, &[1; 512]).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    });
}

#[test]
fn with_a_delay_an_unanswered_request_is_sent_again() {
    let (place, asked) = (Place::new(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    place.serve(move |at, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        while let Some(asked) = line.asked() {
            count.fetch_add(usize::from(asked.number == READ), Ordering::Relaxed);
            match (at, asked.number) {
                (0, _) => {}
                (_, READ) => line.data(&asked, &vec![7; asked.len as usize]),
                _ => line.done(asked.cookie),
            }
        }
    });
    let options = Options {
        remote_timeout: Some(Duration::from_secs(1)),
        reconnect_delay: Duration::from_secs(20),
        ..place.options()
    };
    run(async {
        let storage = open(options).await;
        assert_eq!(read(&storage, 0, 512).await.unwrap(), [7; 512]);
        storage.flush().await.unwrap();
    });
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}
