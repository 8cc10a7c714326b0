//! An object that is uploaded in parts.

use std::collections::VecDeque;
use std::sync::Arc;

use memory::{IoBuf, IoBytes};
use reactor::Task;
use wire::http::Fields;

use crate::s3::elements::{element, unescaped};
use crate::s3::service::Service;
use crate::s3::store::{Present, Store, StoreError, mark};

/// Parts of an object at most, as S3 has it.
pub const PARTS_MAX: usize = 10_000;
/// Bytes of a part at least: S3 wants 5 MiB of all but the last.
pub const PART_BYTES_MIN: usize = 8 << 20;

/// What of an upload is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadSize {
    /// Bytes of a part, [`PART_BYTES_MIN`] or more.
    pub part_bytes: usize,
    /// Parts on their way at a time.
    pub parts_in_flight: usize,
}

impl UploadSize {
    /// For an object of `object_bytes` at most in `memory_bytes`: the first part, the one that is filled, and those on their way.
    /// Otherwise the memory that it needs.
    ///
    /// # Errors
    /// When there is less.
    pub fn fit(object_bytes: u64, memory_bytes: u64) -> Result<Self, u64> {
        const MIB: u64 = 1 << 20;
        const IN_FLIGHT_MAX: u64 = 8;
        // One is left for the end of a part that is not full.
        let part_bytes = object_bytes.div_ceil(PARTS_MAX as u64 - 1).next_multiple_of(MIB);
        let part_bytes = part_bytes.max(PART_BYTES_MIN as u64);
        match memory_bytes / part_bytes {
            0..3 => Err(3 * part_bytes),
            parts => Ok(Self {
                part_bytes: usize::try_from(part_bytes).map_err(|_| 3 * part_bytes)?,
                parts_in_flight: usize::try_from((parts - 2).min(IN_FLIGHT_MAX)).unwrap_or(1),
            }),
        }
    }
}

/// An object on its way, from its first byte to its last.
///
/// It is invisible before [`Upload::finish`] has succeeded. The first part is kept in memory and sent last, so that what stands at
/// the start may be known late. One who does not finish it calls [`Upload::abort`]: parts that were sent cost money until then.
/// After the end of this process without either, the store keeps them, until a user or a rule of the bucket removes them; Azure for a week.
/// Google's stores take no condition with the last request: [`Present::Keep`] is looked at before it.
#[derive(Debug)]
pub struct Upload {
    store: Arc<Store>,
    key: String,
    present: Present,
    size: UploadSize,
    /// The part that is sent last.
    first: Option<IoBuf>,
    filling: Option<IoBuf>,
    /// Bytes of `filling` that are there.
    filled: usize,
    /// What the store calls it, once a second part is sent.
    id: Option<String>,
    mark: String,
    /// The second part and those behind it that are sent.
    etags: Vec<String>,
    /// Those on their way, which follow.
    sending: VecDeque<Task<Result<String, StoreError>>>,
}

impl Upload {
    /// Asks whether there is such an object, unless it may be replaced. Nothing else happens at the store.
    ///
    /// # Errors
    /// When there is one, or the store does not answer.
    pub async fn begin(
        store: Arc<Store>,
        key: &str,
        present: Present,
        size: UploadSize,
    ) -> Result<Self, StoreError> {
        let there = store.look(key).await?;
        if present == Present::Keep && there.is_some() {
            return Err(StoreError::Exists { name: store.object(key)? });
        }
        Ok(Self {
            store,
            key: key.to_owned(),
            present,
            size,
            first: None,
            filling: None,
            filled: 0,
            id: None,
            mark: String::new(),
            etags: Vec::new(),
            sending: VecDeque::new(),
        })
    }

    /// Adds bytes at the end. They are copied; waits for parts that were sent as memory demands.
    ///
    /// # Errors
    /// When the store does not take a part, or the object has too many. It is then to be aborted.
    pub async fn append(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let part_bytes = self.size.part_bytes;
            let part = self.filling.get_or_insert_with(|| IoBuf::uninit(part_bytes));
            let (now, rest) = bytes.split_at((part_bytes - self.filled).min(bytes.len()));
            if let Some(room) = part.get_mut(self.filled..self.filled + now.len()) {
                room.copy_from_slice(now);
            }
            self.filled += now.len();
            bytes = rest;
            if self.filled == part_bytes {
                self.pass_on().await?;
            }
        }
        Ok(())
    }

    /// Puts `start` over the first bytes, which were appended before, and makes the object visible.
    ///
    /// # Errors
    /// When the store does not take it; it is then to be aborted.
    pub async fn finish(&mut self, start: &[u8]) -> Result<(), StoreError> {
        if self.first.is_none() {
            self.first = Some(self.rest());
        } else if self.filled > 0 {
            let part = self.rest();
            self.send(part).await?;
        }
        let mut first = self.first.take().unwrap_or_else(|| IoBuf::uninit(0));
        if let Some(there) = first.get_mut(..start.len()) {
            there.copy_from_slice(start);
        }
        let first = first.freeze();
        match self.id.clone() {
            None => self.store.put(&self.key, first, &self.present).await,
            Some(id) => {
                let first = part(Arc::clone(&self.store), self.key.clone(), id.clone(), 1, first).await?;
                while !self.sending.is_empty() {
                    self.wait_for_one().await?;
                }
                self.complete(&id, &first).await
            }
        }
    }

    /// Takes away what was sent. Afterwards nothing of it is at the store.
    ///
    /// # Errors
    /// When the store does not answer: the parts that were sent stay until they are removed.
    pub async fn abort(&mut self) -> Result<(), StoreError> {
        for task in self.sending.drain(..) {
            task.cancel().await;
        }
        let Some(id) = &self.id else { return Ok(()) };
        if self.store.service() == Service::Azure {
            // Blocks that no blob has are removed by the service within a week, and by no request.
            self.id = None;
            return Ok(());
        }
        let query = [("uploadId", id.as_str())];
        let aborted =
            self.store.send("DELETE", &self.key, &query, Fields::default(), IoBytes::zeroed(0)).await;
        match aborted {
            // It is gone already: the answer to an earlier attempt was lost.
            Err(error) if error.status() != Some(404) => Err(error),
            _ => {
                self.id = None;
                Ok(())
            }
        }
    }

    /// What the store calls the upload while parts of it are there that no object has.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The part that is filled, as it is.
    fn rest(&mut self) -> IoBuf {
        let mut part = self.filling.take().unwrap_or_else(|| IoBuf::uninit(0));
        part.truncate(self.filled);
        self.filled = 0;
        part
    }

    async fn pass_on(&mut self) -> Result<(), StoreError> {
        let part = self.rest();
        match self.first {
            None => {
                self.first = Some(part);
                Ok(())
            }
            Some(_) => self.send(part).await,
        }
    }

    async fn send(&mut self, bytes: IoBuf) -> Result<(), StoreError> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => self.create().await?,
        };
        while self.sending.len() >= self.size.parts_in_flight {
            self.wait_for_one().await?;
        }
        let number = self.etags.len() + self.sending.len() + 2;
        if number > PARTS_MAX {
            let name = self.store.object(&self.key)?;
            let part_bytes = self.size.part_bytes;
            return Err(StoreError::TooLong { name, parts_max: PARTS_MAX, part_bytes });
        }
        let sent = part(Arc::clone(&self.store), self.key.clone(), id, number, bytes.freeze());
        self.sending.push_back(reactor::spawn(sent));
        Ok(())
    }

    async fn wait_for_one(&mut self) -> Result<(), StoreError> {
        // It stays in the queue until it has ended: who gives up waiting has not lost it.
        if let Some(task) = self.sending.front_mut() {
            let sent = task.await;
            self.sending.pop_front();
            self.etags.push(sent?);
        }
        Ok(())
    }

    async fn create(&mut self) -> Result<String, StoreError> {
        let mut fields = Fields::default();
        self.mark = mark(&mut fields, self.store.service())?;
        if self.store.service() == Service::Azure {
            // Blocks need no announcement; others of the same blob have other names.
            return Ok(self.id.insert(self.mark.clone()).clone());
        }
        let reply =
            self.store.send("POST", &self.key, &[("uploads", "")], fields, IoBytes::zeroed(0)).await?;
        let id = element(&reply.body, "UploadId").map(unescaped);
        let Some(id) = id.filter(|id| !id.is_empty()) else {
            let url = self.store.url(&self.key)?;
            return Err(StoreError::Answer { url, what: "to a new upload has no UploadId".to_owned() });
        };
        self.id = Some(id.clone());
        Ok(id)
    }

    async fn complete(&mut self, id: &str, first: &str) -> Result<(), StoreError> {
        let parts = std::iter::once(first).chain(self.etags.iter().map(String::as_str));
        let mut fields = Fields::default();
        if self.store.service().has_conditions_for_parts() {
            self.store.condition(&mut fields, &self.present)?;
        } else if self.present == Present::Keep && self.store.look(&self.key).await?.is_some() {
            return Err(StoreError::Exists { name: self.store.object(&self.key)? });
        }
        let sent = match self.store.service() {
            Service::Azure => {
                let blocks: String = parts.map(|block| format!("<Latest>{}</Latest>", xml(block))).collect();
                let body =
                    format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>{blocks}</BlockList>");
                let mark = fields.add(self.store.service().upload_field(), self.mark.as_str());
                mark.map_err(crate::http::Error::from)?;
                let body = IoBytes::copy_from(body.as_bytes());
                self.store.send("PUT", &self.key, &[("comp", "blocklist")], fields, body).await
            }
            Service::S3 | Service::Google => {
                let part = |(index, etag): (usize, &str)| {
                    let number = index + 1;
                    format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", xml(etag))
                };
                let parts: String = parts.enumerate().map(part).collect();
                let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
                let body = IoBytes::copy_from(body.as_bytes());
                self.store.send("POST", &self.key, &[("uploadId", id)], fields, body).await
            }
        };
        let completed = match sent {
            Ok(reply) => self.judge(&reply.body),
            Err(error) => Err(error),
        };
        self.store.made(&self.key, &self.mark, &self.present, completed).await?;
        self.id = None;
        Ok(())
    }

    /// A store answers 200 before it begins, and may fail then (CompleteMultipartUpload).
    fn judge(&self, body: &[u8]) -> Result<(), StoreError> {
        if self.store.service() == Service::Azure {
            // It answers when it is done.
            return Ok(());
        }
        if element(body, "ETag").is_some() && element(body, "Error").is_none() {
            return Ok(());
        }
        let code = element(body, "Code").filter(|code| code.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        let what = format!("to the end of an upload is no success ({})", code.unwrap_or("no code"));
        Err(StoreError::Answer { url: self.store.url(&self.key)?, what })
    }
}

/// Sends a part and gives its ETag; at Azure, the name of the block that it is.
async fn part(
    store: Arc<Store>,
    key: String,
    id: String,
    number: usize,
    bytes: IoBytes,
) -> Result<String, StoreError> {
    if store.service() == Service::Azure {
        // Names of blocks are base64, all of one length. These digits are, and four are three bytes.
        let block = format!("{id}{number:08}");
        let query = [("comp", "block"), ("blockid", block.as_str())];
        store.send("PUT", &key, &query, Fields::default(), bytes).await?;
        return Ok(block);
    }
    let number = number.to_string();
    let query = [("partNumber", number.as_str()), ("uploadId", id.as_str())];
    let reply = store.send("PUT", &key, &query, Fields::default(), bytes).await?;
    let no_etag = || "to a part has no ETag".to_owned();
    match reply.etag {
        Some(etag) => Ok(etag),
        None => Err(StoreError::Answer { url: store.url(&key)?, what: no_etag() }),
    }
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_with_the_object_and_take_no_more_memory_than_there_is() {
        const MIB: u64 = 1 << 20;
        let fit = |object, memory| {
            UploadSize::fit(object, memory).map(|size| (size.part_bytes as u64, size.parts_in_flight))
        };
        assert_eq!(fit(0, 48 * MIB), Ok((8 * MIB, 4)));
        assert_eq!(fit(79_992 * MIB, 48 * MIB), Ok((8 * MIB, 4)));
        assert_eq!(fit(79_993 * MIB, 48 * MIB), Ok((9 * MIB, 3)));
        assert_eq!(fit(1 << 40, 48 * MIB), Err(3 * 105 * MIB));
        assert_eq!(fit(0, 23 * MIB), Err(24 * MIB));
        assert_eq!(fit(0, 1 << 40), Ok((8 * MIB, 8)));
    }
}
