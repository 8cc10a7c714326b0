//! Connections that are lost: what was on its way, and what was acknowledged and not flushed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use remote::nbd::Options;
use storage::Storage;

use crate::nbd::support::{FLAGS, FLUSH, Line, Place, READ, Request, WRITE, open, read, run, write};

const SIZE: u64 = 4 << 20;

fn with_delay(place: &Place) -> Options {
    Options { reconnect_delay: Duration::from_secs(30), ..place.options() }
}

/// Serves `disk` as it should be done, until `stop` says that the connection ends with a request, unanswered.
fn serve(line: &mut Line, disk: &Mutex<Vec<u8>>, mut stop: impl FnMut(&Request) -> bool) {
    while let Some(asked) = line.asked() {
        if stop(&asked) {
            return;
        }
        let range = asked.offset as usize..asked.offset as usize + asked.len as usize;
        match asked.number {
            READ => {
                let bytes = disk.lock().unwrap()[range].to_vec();
                line.data(&asked, &bytes);
            }
            WRITE => {
                disk.lock().unwrap()[range].copy_from_slice(&asked.data);
                line.done(asked.cookie);
            }
            _ => line.done(asked.cookie),
        }
    }
}

fn disk() -> Arc<Mutex<Vec<u8>>> {
    Arc::new(Mutex::new(vec![0; SIZE as usize]))
}

/// A server's machine went down with acknowledged writes in its memory. The client connected to it again, had its flush answered,
/// and the guest's file system was missing what had been reported as safe.
#[test]
fn writes_without_a_flush_are_written_again_before_a_flush_succeeds() {
    let (place, disk) = (Place::new(), disk());
    let served = Arc::clone(&disk);
    place.serve(move |at, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        let mut flushes = 0;
        serve(&mut line, &served, |asked| {
            flushes += usize::from(asked.number == FLUSH);
            at == 0 && flushes == 2
        });
        if at == 0 {
            // The machine is gone: of all that was written only what was flushed comes back.
            let mut disk = served.lock().unwrap();
            disk.fill(0);
            disk[..512].fill(1);
        }
    });
    run(async {
        let storage = open(with_delay(&place)).await;
        write(&storage, 0, &[1; 512]).await.unwrap();
        storage.flush().await.unwrap();
        write(&storage, 512, &[2; 2048]).await.unwrap();
        write(&storage, 1024, &[3; 512]).await.unwrap();
        storage.flush().await.unwrap();
        assert_eq!(read(&storage, 0, 2560).await.unwrap(), disk.lock().unwrap()[..2560]);
    });
    let disk = disk.lock().unwrap();
    let runs: Vec<u8> = disk.chunks(512).take(6).map(|sector| sector[0]).collect();
    assert_eq!(runs, [1, 2, 3, 2, 2, 0]);
}

#[test]
fn without_a_delay_a_flush_fails_for_good_once_writes_may_be_gone() {
    let (place, disk) = (Place::new(), disk());
    place.serve(move |at, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        serve(&mut line, &disk, |asked| at == 0 && asked.number == READ);
    });
    run(async {
        let storage = open(place.options()).await;
        write(&storage, 0, &[1; 512]).await.unwrap();
        let lost = read(&storage, 0, 512).await.unwrap_err();
        assert!(lost.to_string().contains("the connection to the NBD server is lost"), "{lost}");
        assert_eq!(read(&storage, 0, 512).await.unwrap(), [1; 512]);
        for _ in 0..3 {
            let refused = storage.flush().await.unwrap_err().to_string();
            assert!(refused.contains("writes that were not flushed"), "{refused}");
        }
    });
}

#[test]
fn what_was_on_its_way_is_sent_again() {
    let (place, disk) = (Place::new(), disk());
    let (served, connections) = (Arc::clone(&disk), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&connections);
    place.serve(move |at, stream| {
        counted.store(at + 1, Ordering::SeqCst);
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        let mut left = 5;
        serve(&mut line, &served, |_| {
            left -= 1;
            left == 0
        });
    });
    run(async {
        let storage = open(with_delay(&place)).await;
        for round in 0..20_u8 {
            let bytes = [round + 1; 512];
            let writes = (0..3_u64).map(|at| write(&storage, at * 65536, &bytes));
            for written in futures_util::future::join_all(writes).await {
                written.unwrap();
            }
            for at in 0..3 {
                assert_eq!(read(&storage, at * 65536, 512).await.unwrap(), bytes);
            }
            storage.flush().await.unwrap();
        }
    });
    assert!(connections.load(Ordering::SeqCst) > 10);
}

/// A server that takes every connection and ends it with the first request was asked for ever, thousands of times a second.
#[test]
fn a_server_that_never_answers_is_given_up_after_the_delay() {
    let place = Place::new();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    place.serve(move |_, stream| {
        counted.fetch_add(1, Ordering::SeqCst);
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        line.asked();
    });
    let began = Instant::now();
    run(async {
        let storage = open(Options { reconnect_delay: Duration::from_secs(1), ..place.options() }).await;
        let lost = read(&storage, 0, 512).await.unwrap_err();
        assert_eq!(lost.kind(), std::io::ErrorKind::ConnectionAborted);
    });
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert!(connections.load(Ordering::SeqCst) < 100);
}

#[test]
fn a_server_that_is_gone_is_an_error_and_one_that_is_back_is_used() {
    let (place, disk) = (Place::new(), disk());
    let served = Arc::clone(&disk);
    place.serve(move |_, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        serve(&mut line, &served, |asked| asked.offset == 4096);
    });
    let hidden = place.path("hidden");
    run(async {
        let storage = open(place.options()).await;
        assert!(read(&storage, 0, 512).await.is_ok());
        std::fs::rename(place.socket(), &hidden).unwrap();
        assert!(read(&storage, 4096, 512).await.is_err());
        let refused = read(&storage, 0, 512).await.unwrap_err().to_string();
        assert!(refused.contains("cannot connect to"), "{refused}");
        std::fs::rename(&hidden, place.socket()).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while let Err(error) = read(&storage, 0, 512).await {
            assert!(Instant::now() < until, "{error}");
            reactor::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// An export that came back with another size is another disk: half of the bytes would be one's, half the other's.
#[test]
fn an_export_that_comes_back_as_another_one_is_refused() {
    let (place, disk) = (Place::new(), disk());
    place.serve(move |at, stream| {
        let size = if at == 0 { SIZE } else { SIZE / 2 };
        let mut line = Line::shake_hands(stream, size, FLAGS).unwrap();
        serve(&mut line, &disk, |_| at == 0);
    });
    run(async {
        let storage = open(Options { reconnect_delay: Duration::from_secs(1), ..place.options() }).await;
        let refused = read(&storage, 0, 512).await.unwrap_err().to_string();
        assert!(refused.contains("the export has 2097152 bytes now and had 4194304"), "{refused}");
    });
}

/// A server that was lost every few seconds, while many writes were repeated, never got to the end of them: a guest saw an error at the deadline.
#[test]
fn a_connection_that_is_lost_while_writes_are_repeated_is_not_given_all_of_them_again() {
    const MIB: usize = 1 << 20;
    const WRITES: usize = 12;
    /// Of a connection, before it is lost; then also what it did not flush.
    const TAKEN: usize = 6;
    let place = Place::new();
    let empty = || Arc::new(Mutex::new(vec![0; WRITES * MIB]));
    let (cache, durable, lives) = (empty(), empty(), Arc::new(AtomicUsize::new(0)));
    let (seen, flushed, lived) = (Arc::clone(&cache), Arc::clone(&durable), Arc::clone(&lives));
    place.serve(move |at, stream| {
        lived.fetch_add(1, Ordering::SeqCst);
        let mut line = Line::shake_hands(stream, (WRITES * MIB) as u64, FLAGS).unwrap();
        let mut taken = 0;
        serve(&mut line, &seen, |asked| {
            taken += usize::from(asked.number == WRITE);
            let ends = if at == 0 { asked.number == FLUSH } else { taken > TAKEN };
            if asked.number == FLUSH && !ends {
                flushed.lock().unwrap().clone_from(&seen.lock().unwrap());
            }
            ends
        });
        seen.lock().unwrap().clone_from(&flushed.lock().unwrap());
    });
    run(async {
        let storage = open(with_delay(&place)).await;
        for number in 0..WRITES {
            write(&storage, (number * MIB) as u64, &vec![number as u8 + 1; MIB]).await.unwrap();
        }
        storage.flush().await.unwrap();
    });
    let bytes: Vec<u8> = durable.lock().unwrap().chunks(MIB).map(|block| block[9]).collect();
    assert_eq!(bytes, (1..=WRITES as u8).collect::<Vec<_>>());
    assert!(lives.load(Ordering::SeqCst) > 2, "no connection was lost while writes were repeated");
}

/// Kept writes are memory: without a bound a guest that never flushes fills the host's.
#[test]
fn a_flush_is_sent_when_many_writes_are_kept() {
    let (place, disk) = (Place::new(), disk());
    let flushes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&flushes);
    place.serve(move |_, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        serve(&mut line, &disk, |asked| {
            counted.fetch_add(usize::from(asked.number == FLUSH), Ordering::SeqCst);
            false
        });
    });
    run(async {
        let storage = open(with_delay(&place)).await;
        for _ in 0..100 {
            write(&storage, 0, &[1; 1 << 20]).await.unwrap();
        }
    });
    assert_eq!(flushes.load(Ordering::SeqCst), 3);
}

/// A tool opened a disk on one loop and used it on the next: the connection went with the first.
#[test]
fn a_connection_whose_loop_ended_is_made_again() {
    let (place, disk) = (Place::new(), disk());
    place.serve(move |_, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        serve(&mut line, &disk, |_| false);
    });
    let storage = run(open(with_delay(&place)));
    run(async { write(&storage, 0, &[9; 512]).await.unwrap() });
    run(async {
        assert_eq!(read(&storage, 0, 512).await.unwrap(), [9; 512]);
        storage.flush().await.unwrap();
    });
}

#[test]
fn a_dropped_request_leaves_the_others_alone() {
    let (place, disk) = (Place::new(), disk());
    disk.lock().unwrap().fill(5);
    place.serve(move |_, stream| {
        let mut line = Line::shake_hands(stream, SIZE, FLAGS).unwrap();
        serve(&mut line, &disk, |_| false);
    });
    run(async {
        let storage = open(place.options()).await;
        for at in 0..1000_u64 {
            let dropped = Box::pin(read(&storage, 0, 4096));
            let kept = Box::pin(read(&storage, at * 512, 512));
            match futures_util::future::select(kept, dropped).await {
                futures_util::future::Either::Left((kept, _)) => assert_eq!(kept.unwrap(), [5; 512]),
                futures_util::future::Either::Right((_, kept)) => assert_eq!(kept.await.unwrap(), [5; 512]),
            }
        }
    });
}
