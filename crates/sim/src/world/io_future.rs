//! The future of one simulated request.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::World;
use super::machine::Ended;

/// Waits for a request that is already issued; dropping it leaves the request to its fate.
pub(super) struct IoInFlight {
    world: World,
    number: u64,
    ended: bool,
}

impl IoInFlight {
    pub fn new(world: World, number: u64) -> Self {
        Self { world, number, ended: false }
    }
}

impl Future for IoInFlight {
    type Output = Ended;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let ended = self.world.machine.lock().poll(self.number, context.waker());
        match ended {
            Some(ended) => {
                self.ended = true;
                Poll::Ready(ended)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for IoInFlight {
    fn drop(&mut self) {
        if !self.ended {
            self.world.machine.lock().abandon(self.number);
        }
    }
}
