//! The loop: tasks, timers, wake-ups, and what becomes of operations whose future is dropped.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

use std::cell::Cell;
use std::fs::File as StdFile;
use std::future::Future;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use memory::{IoBuf, IoBytes, IoVec};
use reactor::fs::File;
use reactor::net::{Listener, Stream};
use reactor::{Backend, Look, Reactor, Seen, blocking, sleep, sleep_until, spawn, watch, within, yield_now};

fn on_both<F: AsyncFn()>(test: F) {
    for backend in [Backend::Ring, Backend::Threads] {
        Reactor::new(backend).expect("the test machine allows io_uring").run(test());
    }
}

fn pair() -> (Stream, Stream) {
    let (one, other) = UnixStream::pair().unwrap();
    (Stream::from_fd(one.into()), Stream::from_fd(other.into()))
}

fn scratch(bytes: &[u8]) -> StdFile {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn thousands_of_tasks_all_run_and_give_their_output() {
    on_both(async || {
        let tasks: Vec<_> = (0..5000u64)
            .map(|number| {
                spawn(async move {
                    yield_now().await;
                    number
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await;
        }
        assert_eq!(sum, 4999 * 5000 / 2);
    });
}

#[test]
fn more_operations_than_the_rings_hold_all_complete() {
    on_both(async || {
        let bytes: Vec<u8> = (0..=255).collect();
        let file = File::new(OwnedFd::from(scratch(&bytes)), Backend::Ring);
        let reads: Vec<_> = (0..6000u64)
            .map(|number| {
                let file = file.clone();
                spawn(async move { (number, file.read_at(number % 256, IoBuf::zeroed(1)).await) })
            })
            .collect();
        for read in reads {
            let (number, (result, buf)) = read.await;
            assert_eq!((result.unwrap(), buf[0]), (1, (number % 256) as u8));
        }
    });
}

#[test]
fn a_task_that_starts_at_once_runs_to_its_first_wait_and_on_like_any_other() {
    on_both(async || {
        let steps = Rc::new(Cell::new(0));
        let seen = Rc::clone(&steps);
        let task = reactor::spawn_now(async move {
            seen.set(1);
            yield_now().await;
            seen.set(2);
            7
        });
        assert_eq!(steps.get(), 1);
        assert_eq!(task.await, 7);
        assert_eq!(steps.get(), 2);
        assert_eq!(reactor::spawn_now(async { 3 }).await, 3);
    });
}

#[test]
fn timers_fire_in_order_and_not_early() {
    on_both(async || {
        let start = Instant::now();
        let order = Rc::new(Cell::new(0u32));
        let tasks: Vec<_> = [3u32, 1, 2]
            .into_iter()
            .map(|place| {
                let order = Rc::clone(&order);
                spawn(async move {
                    let deadline = start + Duration::from_millis(5) * place;
                    sleep_until(deadline).await;
                    assert!(Instant::now() >= deadline);
                    order.set(order.get() * 10 + place);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        assert_eq!(order.get(), 123);
    });
}

#[test]
fn a_dropped_timer_wakes_nobody() {
    on_both(async || {
        let mut long = Box::pin(sleep(Duration::from_secs(3600)));
        assert!(poll_once(long.as_mut()).is_pending());
        drop(long);
        sleep(Duration::from_millis(1)).await;
    });
}

#[test]
fn work_is_dropped_at_its_limit_and_gives_its_output_before() {
    on_both(async || {
        let long = Duration::from_secs(3600);
        assert_eq!(within(long, async { 7 }).await, Some(7));
        assert_eq!(within(long, sleep(Duration::from_millis(1))).await, Some(()));
        assert_eq!(within(Duration::from_millis(1), sleep(long)).await, None);
    });
}

#[test]
fn a_waker_works_from_another_thread_while_the_loop_sleeps() {
    on_both(async || {
        for _ in 0..200 {
            let done = Arc::new(AtomicBool::new(false));
            let mut helper = None;
            std::future::poll_fn(|cx| {
                if done.load(Ordering::Acquire) {
                    return Poll::Ready(());
                }
                let (done, waker) = (Arc::clone(&done), cx.waker().clone());
                helper.get_or_insert_with(|| {
                    std::thread::spawn(move || {
                        done.store(true, Ordering::Release);
                        waker.wake();
                    })
                });
                Poll::Pending
            })
            .await;
            helper.unwrap().join().unwrap();
        }
    });
}

#[test]
fn a_task_is_woken_from_another_thread() {
    on_both(async || {
        let event = Arc::new(event_listener::Event::new());
        for _ in 0..200 {
            let listener = event.listen();
            let task = spawn(listener);
            let event = Arc::clone(&event);
            let helper = std::thread::spawn(move || {
                event.notify(1);
            });
            task.await;
            helper.join().unwrap();
        }
    });
}

#[test]
fn a_waker_that_outlives_its_loop_does_no_harm() {
    for backend in [Backend::Ring, Backend::Threads] {
        let kept = Arc::new(parking_lot::Mutex::new(None));
        let reactor = Reactor::new(backend).unwrap();
        reactor.run(async {
            let kept = Arc::clone(&kept);
            spawn(std::future::poll_fn(move |cx| {
                *kept.lock() = Some(cx.waker().clone());
                Poll::<()>::Pending
            }))
            .detach();
            yield_now().await;
        });
        drop(reactor);
        let waker: Waker = kept.lock().take().unwrap();
        std::thread::spawn(move || waker.wake()).join().unwrap();
    }
}

#[test]
fn dropping_the_reactor_drops_every_task() {
    struct Note(Rc<Cell<u32>>);
    impl Drop for Note {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    for backend in [Backend::Ring, Backend::Threads] {
        let dropped = Rc::new(Cell::new(0));
        let reactor = Reactor::new(backend).unwrap();
        reactor.run(async {
            for _ in 0..3 {
                let note = Note(Rc::clone(&dropped));
                let (near, far) = pair();
                spawn(async move {
                    let _held = (note, far);
                    let _ = near.recv(IoBuf::zeroed(16)).await;
                })
                .detach();
            }
            yield_now().await;
        });
        assert_eq!(dropped.get(), 0);
        drop(reactor);
        assert_eq!(dropped.get(), 3);
    }
}

#[test]
fn completions_are_seen_while_tasks_are_always_ready() {
    on_both(async || {
        let stop = Rc::new(Cell::new(false));
        let busy = spawn({
            let stop = Rc::clone(&stop);
            async move {
                while !stop.get() {
                    yield_now().await;
                }
            }
        });
        let (near, far) = pair();
        let receive = spawn(async move { near.recv(IoBuf::zeroed(8)).await });
        yield_now().await;
        far.send_all(IoBytes::copy_from(b"ping").into()).await.unwrap();
        let (result, buf) = receive.await;
        assert_eq!(&buf[..result.unwrap()], b"ping");
        sleep(Duration::from_millis(1)).await;
        blocking(|| ()).await;
        stop.set(true);
        busy.await;
    });
}

#[test]
fn a_dropped_read_keeps_its_buffer_until_the_kernel_is_done() {
    on_both(async || {
        let file = File::new(OwnedFd::from(scratch(&[0x5a; 1 << 20])), Backend::Ring);
        for _ in 0..50 {
            let mut reads: Vec<_> =
                (0..8).map(|_| Box::pin(file.read_at(0, IoBuf::zeroed(1 << 20)))).collect();
            for read in &mut reads {
                let _ = poll_once(read.as_mut());
            }
            drop(reads);
            // Were the buffers free already, these would get their memory from the pool.
            let fresh: Vec<IoBuf> = (0..8).map(|_| IoBuf::zeroed(1 << 20)).collect();
            yield_now().await;
            blocking(|| ()).await;
            assert!(fresh.iter().all(|buf| buf.iter().all(|&byte| byte == 0)));
        }
    });
}

/// Reading a compressed image left 8 MiB with each thread that had decompressed, and with 64 threads half a GiB.
#[test]
fn memory_that_a_blocking_call_drops_does_not_stay_with_its_thread() {
    on_both(async || {
        let first_byte_again = blocking(|| {
            let mut buf = IoBuf::uninit(8192);
            buf.fill(0xaa);
            drop(buf);
            IoBuf::uninit(8192)[0]
        });
        assert_eq!(first_byte_again.await, 0, "the same memory came back");
    });
}

#[test]
fn a_dropped_receive_lets_go_of_the_socket() {
    on_both(async || {
        let (near, far) = pair();
        let mut receive = Box::pin(near.recv(IoBuf::zeroed(16)));
        assert!(poll_once(receive.as_mut()).is_pending());
        drop(receive);
        drop(near);
        // The other side sees the end only when the orphan has given its descriptor back.
        let (result, _) = far.recv(IoBuf::zeroed(16)).await;
        assert_eq!(result.unwrap(), 0);
    });
}

#[test]
fn dropping_the_reactor_waits_for_the_operations_of_futures_kept_elsewhere() {
    for backend in [Backend::Ring, Backend::Threads] {
        let (near, far) = pair();
        let reactor = Reactor::new(backend).unwrap();
        let mut receive = Box::pin(near.recv(IoBuf::zeroed(16)));
        reactor.run(async {
            assert!(poll_once(receive.as_mut()).is_pending());
            yield_now().await;
        });
        drop(reactor);
        let Poll::Ready((result, buf)) = poll_once(receive.as_mut()) else { panic!("still in flight") };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        drop(far);
        assert!(buf.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_large_send_arrives_whole_through_a_small_socket() {
    on_both(async || {
        let (near, far) = pair();
        let mut data = IoVec::new();
        for part in 0..3000u32 {
            data.push(IoBytes::copy_from(&[(part % 251) as u8; 1000]));
        }
        let sender = spawn(async move { near.send_all(data).await });
        let mut seen = 0usize;
        let mut buf = IoBuf::zeroed(64 << 10);
        loop {
            let (result, back) = far.recv(buf).await;
            buf = back;
            let count = result.unwrap();
            if count == 0 {
                break;
            }
            for &byte in &buf[..count] {
                assert_eq!(byte, ((seen / 1000) % 251) as u8);
                seen += 1;
            }
        }
        sender.await.unwrap();
        assert_eq!(seen, 3_000_000);
    });
}

#[test]
fn two_loops_accept_on_one_listener() {
    for backend in [Backend::Ring, Backend::Threads] {
        let listener = Listener::from_tcp(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        let address = match rustix::net::getsockname(&listener).unwrap().try_into().unwrap() {
            std::net::SocketAddr::V4(address) => std::net::SocketAddr::V4(address),
            other => panic!("bound to {other}"),
        };
        let serve = |listener: Listener| {
            std::thread::spawn(move || {
                Reactor::new(backend).unwrap().run(async {
                    let mut served = 0u32;
                    loop {
                        let stream = listener.accept().await.unwrap();
                        let (result, mut buf) = stream.recv(IoBuf::zeroed(8)).await;
                        let count = result.unwrap();
                        if &buf[..count] == b"end" {
                            return served;
                        }
                        served += 1;
                        buf.truncate(count);
                        stream.send_all(buf.freeze().into()).await.unwrap();
                    }
                })
            })
        };
        let loops = [serve(listener.clone()), serve(listener)];
        Reactor::new(backend).unwrap().run(async {
            for _ in 0..100 {
                let stream = Stream::connect_tcp(address).await.unwrap();
                stream.send_all(IoBytes::copy_from(b"hello").into()).await.unwrap();
                let (result, buf) = stream.recv(IoBuf::zeroed(8)).await;
                assert_eq!(&buf[..result.unwrap()], b"hello");
            }
            for _ in 0..2 {
                let stream = Stream::connect_tcp(address).await.unwrap();
                stream.send_all(IoBytes::copy_from(b"end").into()).await.unwrap();
                let (result, _) = stream.recv(IoBuf::zeroed(8)).await;
                assert!(matches!(result, Ok(0) | Err(_)));
            }
        });
        let served: u32 = loops.into_iter().map(|served| served.join().unwrap()).sum();
        assert_eq!(served, 100);
    }
}

#[test]
fn a_blocking_call_does_not_hold_up_the_loop() {
    on_both(async || {
        let (send, wait) = std::sync::mpsc::channel();
        let mut call = pin!(blocking(move || wait.recv().unwrap()));
        assert!(poll_once(call.as_mut()).is_pending());
        yield_now().await;
        send.send(7).unwrap();
        assert_eq!(call.await, 7);
    });
}

#[test]
fn a_file_is_written_synced_and_read_back() {
    for own in [Backend::Ring, Backend::Threads] {
        on_both(async || {
            let file = File::new(OwnedFd::from(scratch(b"")), own);
            let mut data = IoVec::new();
            data.push(IoBytes::copy_from(b"abc"));
            data.push(IoBytes::copy_from(b"defg"));
            assert_eq!(file.write_at(5, data).await.unwrap(), 7);
            file.fallocate(0, 0, 100).await.unwrap();
            file.sync_data().await.unwrap();
            file.sync_all().await.unwrap();
            let (result, buf) = file.read_at(0, IoBuf::zeroed(200)).await;
            assert_eq!((result.unwrap(), &buf[5..12]), (100, &b"abcdefg"[..]));
        });
    }
}

#[test]
fn a_connection_that_never_pauses_does_not_starve_the_others() {
    on_both(async || {
        let (near, far) = UnixStream::pair().unwrap();
        let flood = std::thread::spawn(move || {
            use std::io::Write;
            let mut far = far;
            while far.write_all(&[1; 4096]).is_ok() {}
        });
        let near = Rc::new(Stream::from_fd(near.into()));
        let drain = spawn({
            let near = Rc::clone(&near);
            async move {
                let mut buf = IoBuf::zeroed(512);
                loop {
                    let (result, back) = near.recv(buf).await;
                    buf = back;
                    if result.unwrap() == 0 {
                        return;
                    }
                }
            }
        });
        let (one, other) = pair();
        for _ in 0..100 {
            one.send_all(IoBytes::copy_from(b"ping").into()).await.unwrap();
            let (result, _) = other.recv(IoBuf::zeroed(4)).await;
            assert_eq!(result.unwrap(), 4);
            sleep(Duration::from_micros(100)).await;
        }
        near.shutdown(std::net::Shutdown::Both).unwrap();
        drain.await;
        flood.join().unwrap();
    });
}

#[test]
fn a_panic_of_a_task_comes_out_of_run_and_leaves_nothing_in_flight() {
    for backend in [Backend::Ring, Backend::Threads] {
        let reactor = Reactor::new(backend).unwrap();
        let (near, far) = pair();
        let run = std::panic::AssertUnwindSafe(|| {
            reactor.run(async {
                let waiting = spawn(async move { near.recv(IoBuf::zeroed(16)).await.0 });
                yield_now().await;
                spawn(async { panic!("expected by the test") }).await;
                waiting.await
            })
        });
        assert!(std::panic::catch_unwind(run).is_err());
        let stats = reactor.stats();
        assert_eq!((stats.started, stats.completed), (1, 0));
        assert_eq!(reactor.run(async { 7 }), 7);
        drop(reactor);
        let ended = Reactor::new(backend).unwrap().run(async { far.recv(IoBuf::zeroed(1)).await.0 });
        assert_eq!(ended.unwrap(), 0);
    }
}

#[test]
fn descriptors_come_with_the_bytes_they_were_sent_with() {
    use std::io::{IoSlice, Read, Write};
    use std::mem::MaybeUninit;
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    on_both(async || {
        let (near, far) = UnixStream::pair().unwrap();
        let near = Stream::from_fd(near.into());
        let send = |file: &StdFile, bytes: &[u8], count: usize| {
            let fds = vec![file.as_fd(); count];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(100))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            sendmsg(&far, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
        };
        // Waited for, and dropped: nothing is lost.
        let mut fds = Vec::new();
        let mut dropped = Box::pin(near.recv_with_fds(IoBuf::zeroed(16), &mut fds));
        assert!(poll_once(dropped.as_mut()).is_pending());
        drop(dropped);
        send(&scratch(b"first"), b"one", 1);
        let (count, buf) = near.recv_with_fds(IoBuf::zeroed(16), &mut fds).await;
        assert_eq!((&buf[..count.unwrap()], fds.len()), (&b"one"[..], 1));
        let mut text = String::new();
        let mut file = StdFile::from(fds.remove(0));
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "first");
        // More than any sender means: the rest is closed, the bytes arrive.
        send(&scratch(b""), b"many", 100);
        let (count, _) = near.recv_with_fds(IoBuf::zeroed(16), &mut fds).await;
        assert_eq!((count.unwrap(), fds.len()), (4, 16));
        fds.clear();
        (&far).write_all(b"none").unwrap();
        let (count, _) = near.recv_with_fds(IoBuf::zeroed(16), &mut fds).await;
        assert_eq!((count.unwrap(), fds.len()), (4, 0));
        drop(far);
        assert_eq!(near.recv_with_fds(IoBuf::zeroed(16), &mut fds).await.0.unwrap(), 0);
    })
}

#[test]
fn a_peer_that_is_gone_is_noticed_and_one_that_only_stops_sending_is_not() {
    on_both(async || {
        for receiving in [false, true] {
            let (near, far) = UnixStream::pair().unwrap();
            let near = Stream::from_fd(near.into());
            let mut hung_up = pin!(near.hung_up());
            let mut received = pin!(near.recv(IoBuf::zeroed(1)));
            assert!(poll_once(hung_up.as_mut()).is_pending());
            if receiving {
                assert!(poll_once(received.as_mut()).is_pending());
            }
            far.shutdown(std::net::Shutdown::Write).unwrap();
            sleep(Duration::from_millis(5)).await;
            assert!(poll_once(hung_up.as_mut()).is_pending(), "it still reads");
            drop(far);
            hung_up.await.unwrap();
            assert_eq!(received.await.0.unwrap(), 0);
        }
    });
}

#[test]
fn a_doorbell_wakes_who_waits_once_for_all_that_came_before() {
    use reactor::Doorbell;
    use rustix::event::{EventfdFlags, eventfd};

    on_both(async || {
        // As other processes make them: it may be a blocking one.
        for flags in [EventfdFlags::empty(), EventfdFlags::NONBLOCK] {
            let fd = eventfd(0, flags).unwrap();
            let peer = Doorbell::from_fd(fd.try_clone().unwrap()).unwrap();
            let bell = Doorbell::from_fd(fd).unwrap();
            assert!(!bell.take().unwrap());
            let mut dropped = Box::pin(bell.rung());
            assert!(poll_once(dropped.as_mut()).is_pending());
            drop(dropped);
            peer.ring().unwrap();
            peer.ring().unwrap();
            bell.rung().await.unwrap();
            assert!(!bell.take().unwrap(), "two rings before the look are one");
            let waiting = reactor::spawn(async move { bell.rung().await.map(|()| bell) });
            sleep(Duration::from_millis(2)).await;
            peer.ring().unwrap();
            waiting.await.unwrap();
        }
        // A counter that is full delays no task, and a file is no bell.
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        Doorbell::from_fd(full).unwrap().ring().unwrap();
        let file = Doorbell::from_fd(scratch(b"").into()).unwrap();
        assert!(file.take().is_err());
    });
}

#[test]
fn a_message_is_sent_with_its_descriptors_or_not_at_all() {
    use std::os::fd::AsFd;

    on_both(async || {
        let (near, far) = UnixStream::pair().unwrap();
        let (near, far) = (Stream::from_fd(near.into()), Stream::from_fd(far.into()));
        let file = scratch(b"inside");
        near.send_with_fds_now(b"with", &[file.as_fd(), file.as_fd()]).unwrap();
        near.send_with_fds_now(b"without", &[]).unwrap();
        let mut fds = Vec::new();
        let (count, buf) = far.recv_with_fds(IoBuf::zeroed(4), &mut fds).await;
        assert_eq!((&buf[..count.unwrap()], fds.len()), (&b"with"[..], 2));
        let (count, _) = far.recv_with_fds(IoBuf::zeroed(16), &mut fds).await;
        assert_eq!((count.unwrap(), fds.len()), (7, 2));
        let room = vec![0; 4096];
        let refused = std::iter::repeat_with(|| near.send_with_fds_now(&room, &[])).find_map(Result::err);
        assert_eq!(refused.unwrap().kind(), std::io::ErrorKind::WouldBlock);
    });
}

/// Memory in which there is something after so many looks.
struct After(Cell<u32>);

impl After {
    fn looks(count: u32) -> Rc<Self> {
        Rc::new(Self(Cell::new(count)))
    }
}

impl Look for After {
    fn is_there(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() == 0
    }
}

/// A peer that is not notified before the loop sleeps cannot ask to be woken, and what comes then is never seen.
#[test]
fn who_watches_memory_is_reported_before_the_loop_sleeps() {
    on_both(async || {
        assert_eq!(watch(After::looks(1)).await, Seen::Something, "it is there at once");
        for _ in 0..20 {
            let never = || watch(After::looks(u32::MAX));
            let (one, other) = (spawn(never()), spawn(never()));
            assert_eq!((one.await, other.await), (Seen::AboutToSleep, Seen::AboutToSleep));
        }
        // The loop sleeps after that, and other things wake it.
        let watching = spawn(watch(After::looks(u32::MAX)));
        blocking(|| std::thread::sleep(Duration::from_millis(5))).await;
        assert_eq!(watching.await, Seen::AboutToSleep);
    });
}

#[test]
fn what_comes_into_memory_is_seen_while_other_tasks_keep_the_loop_awake() {
    on_both(async || {
        let busy = spawn(async {
            loop {
                yield_now().await;
            }
        });
        assert_eq!(watch(After::looks(100)).await, Seen::Something);
        drop(busy);
    });
}

#[test]
fn memory_is_not_looked_at_for_who_is_gone() {
    on_both(async || {
        let look = After::looks(u32::MAX);
        let mut dropped = Box::pin(watch(Rc::clone(&look) as Rc<dyn Look>));
        assert!(poll_once(dropped.as_mut()).is_pending());
        drop(dropped);
        let before = look.0.get();
        for _ in 0..3 {
            yield_now().await;
        }
        assert_eq!((look.0.get(), Rc::strong_count(&look)), (before, 1));
    });
}
