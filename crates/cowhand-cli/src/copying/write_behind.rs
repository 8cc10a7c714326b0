//! Writes a copy back while it is made, a piece at a time, and keeps little of it in the page cache.

use std::fs::File;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use futures_util::future::{FutureExt, LocalBoxFuture};
use job::Counters;
use rustix::fs::{Advice, fadvise, fdatasync};
use tool::failure::Failure;

use super::WAITING_BYTES_MAX;

/// Bytes that are written back at a time. As many again may be written meanwhile, then the copy waits.
/// Without a bound Linux writes the pages of a full container a few at a time: minutes for what takes a
/// second.
const PIECE_BYTES: u64 = WAITING_BYTES_MAX / 2;

/// Runs `filling` of `file`, which counts in `counters` what it writes. Each piece is dropped from the page
/// cache when it is durable.
///
/// # Errors
/// As `filling`; also when a piece cannot be written back. That error is reported only once: a later sync of
/// `file` succeeds.
pub async fn writing_behind<T>(
    file: &Arc<File>,
    counters: &Counters,
    filling: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut filling = pin!(filling);
    let mut sent = 0;
    let mut sending: Option<LocalBoxFuture<'_, rustix::io::Result<()>>> = None;
    let written = || counters.progress().written;
    let failed = |error: rustix::io::Errno| Failure::because("cannot write the copy to its device", &error);
    let filled = poll_fn(|context| {
        loop {
            if let Some(piece) = &mut sending {
                match piece.poll_unpin(context) {
                    Poll::Ready(Ok(())) => sending = None,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(failed(error))),
                    Poll::Pending if written() - sent >= PIECE_BYTES => return Poll::Pending,
                    Poll::Pending => {}
                }
            }
            if let Poll::Ready(filled) = filling.poll_unpin(context) {
                return Poll::Ready(filled);
            }
            if sending.is_some() || written() - sent < PIECE_BYTES {
                return Poll::Pending;
            }
            sent = written();
            sending = Some(send(Arc::clone(file)).boxed_local());
        }
    })
    .await?;
    // The kernel reports a failed sync only to this call.
    if let Some(piece) = sending {
        piece.await.map_err(failed)?;
    }
    Ok(filled)
}

async fn send(file: Arc<File>) -> rustix::io::Result<()> {
    reactor::blocking(move || {
        fdatasync(&*file)?;
        // Advice that is not taken changes nothing.
        let _ = fadvise(&*file, 0, None, Advice::DontNeed);
        Ok(())
    })
    .await
}
