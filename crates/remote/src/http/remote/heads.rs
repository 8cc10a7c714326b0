//! Heads of requests: with credentials, and as the way to the server wants them.

use wire::http::{Get, Payload, Request};

use super::{Failure, Remote};
use crate::http::authorize::Authorization;
use crate::http::connection::Connection;
use crate::http::errors::Error;
use crate::http::judge::RangeRequest;

impl Remote {
    pub(super) async fn head(
        &self,
        asked: RangeRequest<'_>,
        connection: &Connection,
    ) -> Result<Vec<u8>, Error> {
        let last = asked.first + asked.len.max(1) - 1;
        let version = asked.pinned.map(|pinned| &pinned.version);
        let get = Get { url: asked.url, first: asked.first, last, version };
        let fields = get.fields();
        let request = Request { method: "GET", url: asked.url, fields: &fields, payload: Payload::Nothing };
        self.head_of(&request, connection).await
    }

    pub(super) async fn head_of(
        &self,
        request: &Request<'_>,
        connection: &Connection,
    ) -> Result<Vec<u8>, Error> {
        // Credentials are for the server that the user named.
        let Authorization { mut fields, query } = match request.url.origin() == self.url.origin() {
            true => self.authorize.authorize(request).await?,
            false => Authorization::default(),
        };
        let mut target = request.url.target();
        if let Some(query) = query {
            target.push(if target.contains('?') { '&' } else { '?' });
            target.push_str(&String::from_utf8_lossy(query.bytes()));
        }
        if let Some(proxy) = &connection.proxy {
            target.insert_str(0, &request.url.origin().to_string());
            proxy.authorize(&mut fields)?;
        }
        Ok(request.head_to(&target, &fields))
    }
}

/// A request that cannot be sent. Credentials that could not be renewed may be renewed later.
pub(super) fn failed_head(error: Error) -> Failure {
    match error {
        error @ Error::Credentials { .. } => Failure::Again { error, after: None },
        error => Failure::Final(error),
    }
}
