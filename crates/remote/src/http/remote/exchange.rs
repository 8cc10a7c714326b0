//! Requests that are no reads of a range: the same connections, attempts and pauses.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::atomic::Ordering;

use wire::http::hash::hash_of_parts;
use wire::http::{Answer, Length, Payload, Request, Scheme, UrlError};

use super::heads::failed_head;
use super::{Ended, Failure, PAUSES, Remote, pause};
use crate::http::client::{Reply, Sent};
use crate::http::connection::Connection;
use crate::http::errors::Error;
use crate::http::judge::{may_come_back, pause_asked_for};

/// A request that is ready to be sent, more than once where need be.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    sent: &'a Sent<'a>,
    /// The hash of the body where it goes unencrypted.
    hash: Option<String>,
}

impl<'a> Exchange<'a> {
    /// Hashes the body beside the loop, where that is needed.
    pub(crate) async fn new(sent: &'a Sent<'a>) -> Self {
        let is_plain = sent.url.origin().scheme == Scheme::Http;
        let hash = match is_plain && !sent.body.is_empty() {
            true => {
                let body = sent.body.clone();
                Some(reactor::blocking(move || hash_of_parts(std::iter::once(&body[..]))).await)
            }
            false => None,
        };
        Self { sent, hash }
    }

    fn request(&self) -> Request<'_> {
        let len = self.sent.body.len() as u64;
        let payload = match &self.hash {
            _ if len == 0 => Payload::Nothing,
            Some(hash) => Payload::Hashed { len, hash },
            None => Payload::Unsigned { len },
        };
        Request { method: self.sent.method, url: self.sent.url, fields: &self.sent.fields, payload }
    }
}

impl Remote {
    pub(crate) async fn exchange(&self, exchange: &Exchange<'_>) -> Result<Reply, Error> {
        let last = RefCell::new(None);
        let attempts = pin!(self.until_exchanged(exchange, &last));
        self.in_time(self.timeouts.remote_timeout, &last, attempts).await?
    }

    async fn until_exchanged(
        &self,
        exchange: &Exchange<'_>,
        last: &RefCell<Option<Error>>,
    ) -> Result<Reply, Error> {
        let mut pauses = PAUSES;
        loop {
            match self.exchange_once(exchange).await {
                Ok(reply) => {
                    self.succeeded(self.url.clone());
                    return Ok(reply);
                }
                Err(Failure::KeptInVain) => {}
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Elsewhere(to)) => {
                    let what = format!("the server says that it is at {to}; only reads are sent elsewhere");
                    return Err(Error::Redirect { url: exchange.sent.url.clone(), what });
                }
                // A task that begins sees at once that no server is there.
                Err(Failure::Again {
                    error: error @ (Error::Connect { .. } | Error::Credentials { .. }),
                    ..
                }) if !self.reached.load(Ordering::Relaxed) => {
                    return Err(error);
                }
                Err(Failure::Again { error, after }) => {
                    *last.borrow_mut() = Some(self.failed(error));
                    pause(&mut pauses, after).await;
                }
            }
        }
    }

    async fn exchange_once(&self, exchange: &Exchange<'_>) -> Result<Reply, Failure> {
        let _turn = self.turns.acquire().await;
        let (sent, request) = (exchange.sent, exchange.request());
        let (mut connection, is_kept) = self.connection(sent.url.origin()).await?;
        let head = self.head_of(&request, &connection).await.map_err(failed_head)?;
        let answer = match connection.ask(&head, &sent.body).await {
            Ok(answer) => answer,
            Err(Ended::Lost(_)) if is_kept => return Err(Failure::KeptInVain),
            Err(ended) => return Err(self.ended(sent.url, ended)),
        };
        self.reached.store(true, Ordering::Relaxed);
        match answer.status {
            200..300 => self.receive(connection, answer, sent).await,
            status => Err(self.refused(connection, &answer, sent, status).await),
        }
    }

    async fn receive(
        &self,
        mut connection: Connection,
        answer: Answer,
        sent: &Sent<'_>,
    ) -> Result<Reply, Failure> {
        let body = match sent.method == "HEAD" || answer.status == 204 {
            true => Vec::new(),
            false => {
                let body = connection.whole_body(answer.length, sent.answer_bytes_max).await;
                body.map_err(|ended| self.ended(sent.url, ended))?
            }
        };
        self.keep(connection, answer.closes);
        let Answer { status, version, date_s, upload, length, generation, .. } = answer;
        let modified_s = version.last_modified.as_deref().and_then(wire::http::date::of_field);
        let bytes = match length {
            Length::Bytes(bytes) => Some(bytes),
            Length::Pieces | Length::UntilClosed => None,
        };
        let is_part = status == 206;
        Ok(Reply { etag: version.etag, generation, modified_s, date_s, upload, bytes, is_part, body })
    }

    async fn refused(
        &self,
        connection: Connection,
        answer: &Answer,
        sent: &Sent<'_>,
        status: u16,
    ) -> Failure {
        if answer.is_redirect() {
            let location = answer.location.as_deref().unwrap_or_default();
            match sent.url.join(location) {
                Ok(to) => return Failure::Elsewhere(to),
                Err(UrlError::Scheme) => return Failure::Final(Error::other_scheme(sent.url, location)),
                Err(_) => {}
            }
        }
        let words = match sent.method {
            // Its answer has no body, whatever it says of one.
            "HEAD" => super::words(status).to_owned(),
            _ => self.refusal(connection, answer).await,
        };
        let error = Error::Refused { url: sent.url.clone(), status, words };
        match may_come_back(status) {
            true => Failure::Again { error, after: pause_asked_for(answer) },
            false => Failure::Final(error),
        }
    }
}
