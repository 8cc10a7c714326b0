//! A session as the messages that lead to it: how another process resumes a front-end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::rings::Vring;
use super::{Refused, Session};
use crate::aside::Passed;
use crate::handed::Said;
use crate::message::{Message, RingFd, RingState};

impl Session {
    /// Stops every ring in order: nothing is in flight any more, and each is ready to go on where it stopped.
    pub(crate) async fn rest(&mut self) {
        self.rings.iter().filter_map(|ring| ring.run.as_ref()).for_each(|run| run.stop.trigger());
        for ring in &mut self.rings {
            ring.rest().await;
        }
    }

    /// The messages that make a session at rest what this one is.
    ///
    /// # Errors
    /// When there is no descriptor left to copy one.
    pub(crate) fn reported(&self) -> io::Result<Vec<Said>> {
        let features = self.device.features.load(Ordering::Acquire);
        let mut reported = vec![
            Said::new(&Message::SetFeatures(features), None),
            Said::new(&Message::SetProtocolFeatures(self.protocol), None),
        ];
        let mut with = |message, fd: &OwnedFd| -> io::Result<()> {
            reported.push(Said::new(&message, Some(fd.try_clone()?)));
            Ok(())
        };
        if let Some((fd, area)) = &self.given.log {
            with(Message::SetLogBase(*area), fd)?;
        }
        for (info, fd) in self.device.memory.load().described() {
            with(Message::AddRegion(info), fd)?;
        }
        if let Some((fd, info)) = &self.given.inflight {
            with(Message::SetInflight(*info), fd)?;
        }
        if let Some(socket) = self.channel.socket()? {
            reported.push(Said::new(&Message::SetBackendChannel, Some(socket)));
        }
        for (number, ring) in (0..).zip(&self.rings) {
            reported.extend(ring.reported(number)?);
        }
        Ok(reported)
    }

    /// Does what another process received.
    ///
    /// # Errors
    /// For the first message that cannot be done here.
    pub(crate) async fn repeat(&mut self, reported: Vec<Said>) -> Result<(), Refused> {
        let aside = Arc::clone(&self.device.export.aside);
        self.device.allowance.set_known(true);
        for Said { request, payload, fd } in reported {
            let asked = Message::decode(request, &payload).map_err(|_| Refused::NotOffered)?;
            let fds = fd.into_iter().map(|fd| Passed::new(fd, &aside)).collect();
            self.handle(asked, payload.len(), fds).await?;
        }
        self.device.allowance.set_known(false);
        Ok(())
    }
}

impl Vring {
    async fn rest(&mut self) {
        if let Some(run) = self.run.take() {
            self.base = run.stopped().await;
        }
    }

    /// What leads to this ring. The kick comes last: with it the ring begins.
    fn reported(&self, ring: u32) -> io::Result<Vec<Said>> {
        let state = |value| RingState { ring, value };
        let bell = RingFd { ring, polled: false };
        let mut reported = Vec::new();
        if self.entries > 0 {
            reported.push(Said::new(&Message::SetRingEntries(state(self.entries)), None));
        }
        reported.push(Said::new(&Message::SetRingBase(state(self.base)), None));
        reported.extend(self.address.map(|address| Said::new(&Message::SetRingAddress(address), None)));
        if let Some(err) = &self.err {
            reported.push(Said::new(&Message::SetRingErr(bell), Some(err.fd().try_clone()?)));
        }
        if let Some(call) = &self.call {
            reported.push(Said::new(&Message::SetRingCall(bell), Some(call.fd().try_clone()?)));
        }
        reported.push(Said::new(&Message::SetRingEnable(state(u32::from(self.enabled))), None));
        if let Some(kick) = &self.kick {
            reported.push(Said::new(&Message::SetRingKick(bell), Some(kick.fd().try_clone()?)));
        }
        Ok(reported)
    }
}
