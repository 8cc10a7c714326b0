//! The back-end's own messages: a front-end is informed that the configuration has changed.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use memory::IoBytes;
use reactor::net::Stream;

use crate::message;
use crate::shown_disk::VhostExport;

/// The socket for them, if the front-end gave one.
#[derive(Debug, Default)]
pub(crate) struct Channel {
    stream: RefCell<Option<Rc<Stream>>>,
}

impl Channel {
    /// Messages go there from now on.
    pub(crate) fn set(&self, stream: Stream) {
        *self.stream.borrow_mut() = Some(Rc::new(stream));
    }

    /// Another descriptor for the socket, if there is one.
    pub(crate) fn socket(&self) -> io::Result<Option<OwnedFd>> {
        self.stream.borrow().as_ref().map(|stream| stream.as_fd().try_clone_to_owned()).transpose()
    }

    /// Tells of each new size of the disk, for ever.
    pub(crate) async fn tell_of_sizes(self: Rc<Self>, export: Arc<VhostExport>) {
        loop {
            let resized = export.entry.resized();
            let before = export.entry.disk().size();
            resized.await;
            let after = export.entry.disk().size();
            let stream = self.stream.borrow().clone();
            let Some(stream) = stream else {
                tracing::info!(before, after, "the front-end has no channel to hear of a new size");
                continue;
            };
            if let Err(error) = stream.send_all(IoBytes::copy_from(&message::config_change()).into()).await {
                tracing::info!(%error, "a front-end does not hear of a new size");
            }
        }
    }
}
