//! A way to a server of this machine on which connections are cut and fall silent.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a way that is silent is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// The way, at a port of its own. Its threads end with the test.
#[derive(Debug)]
pub struct Cutter {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Both ends of every connection that was made.
    ends: Mutex<Vec<TcpStream>>,
    is_silent: AtomicBool,
}

impl Cutter {
    /// A way to the server at port `to`.
    pub fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // A server that is not there is as one that hangs up.
                if let Ok(far) = TcpStream::connect(("127.0.0.1", to)) {
                    Shared::join(&serving, &near, &far);
                }
            }
        });
        Self { port, shared }
    }

    /// Its port, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends every connection, in the middle of whatever it carries. Says how many.
    pub fn cut(&self) -> usize {
        let ends = std::mem::take(&mut *self.shared.ends.lock().expect("no thread panics"));
        ends.iter().filter(|end| end.shutdown(Shutdown::Both).is_ok()).count() / 2
    }

    /// Carries nothing for `time`.
    pub fn be_silent(&self, time: Duration) {
        self.shared.is_silent.store(true, Ordering::Relaxed);
        std::thread::sleep(time);
        self.shared.is_silent.store(false, Ordering::Relaxed);
    }
}

impl Shared {
    fn join(shared: &Arc<Self>, near: &TcpStream, far: &TcpStream) {
        // Small answers are not to wait for acknowledgements of those before them.
        [near, far].into_iter().for_each(|end| drop(end.set_nodelay(true)));
        let copies = [near, far, near, far].map(|end| end.try_clone().expect("a descriptor"));
        let [from_near, from_far, to_near, to_far] = copies;
        let mut ends = shared.ends.lock().expect("no thread panics");
        ends.extend([near, far].map(|end| end.try_clone().expect("a descriptor")));
        for (from, to) in [(from_near, to_far), (from_far, to_near)] {
            let shared = Arc::clone(shared);
            std::thread::spawn(move || shared.carry(from, to));
        }
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let count = from.read(&mut bytes).unwrap_or(0);
            while self.is_silent.load(Ordering::Relaxed) {
                std::thread::sleep(LOOK);
            }
            if count == 0 || to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // The other direction ends, too.
        let _ = to.shutdown(Shutdown::Both);
    }
}
