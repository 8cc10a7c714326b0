//! Lists of the objects of a bucket (ListObjectsV2, which Google has too, and Azure's List Blobs).

use memory::IoBytes;
use wire::http::{Fields, Url, date};

use crate::s3::elements::{elements, inside, unescaped};
use crate::s3::service::Service;
use crate::s3::store::{Store, StoreError};

/// An answer with 1000 keys of 1024 bytes, each escaped, and what is said of each, has less.
const LIST_BYTES_MAX: u64 = 8 << 20;

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub bytes: u64,
    /// For how many seconds it has been what it is, by the store's clock. `None` if the store does not say.
    pub age_s: Option<u64>,
}

/// Which objects are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// All whose keys begin so.
    All,
    /// Of these, those without a slash behind the beginning.
    Here,
}

impl Store {
    /// Gives all objects whose keys begin with `prefix`, up to 1000 at a time, each as it is when its part of the list is answered.
    ///
    /// # Errors
    /// When the store does not answer, refuses, or its list makes no sense; what `give` has.
    pub async fn list<E: From<StoreError>>(
        &self,
        prefix: &str,
        depth: Depth,
        mut give: impl FnMut(Vec<Listed>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut next, is_azure) = (None::<String>, self.service() == Service::Azure);
        loop {
            let mut query = match is_azure {
                true => vec![("restype", "container"), ("comp", "list"), ("prefix", prefix)],
                false => vec![("list-type", "2"), ("prefix", prefix)],
            };
            if depth == Depth::Here {
                query.push(("delimiter", "/"));
            }
            if let Some(token) = &next {
                query.push((if is_azure { "marker" } else { "continuation-token" }, token));
            }
            let url = Self::with_query(self.bucket_url()?, &query);
            let sent = self.send_to(&url, "GET", Fields::default(), IoBytes::zeroed(0), LIST_BYTES_MAX);
            let reply = sent.await.map_err(StoreError::from)?;
            let page = if is_azure { page_of_azure } else { page };
            let (page, token) = page(&url, &reply.body, reply.date_s)?;
            give(page)?;
            match token {
                None => return Ok(()),
                // It would never end.
                token if token == next => return Err(senseless(&url, "does not continue").into()),
                token => next = token,
            }
        }
    }
}

/// A part of a list, and what the next one is asked for with.
type Page = (Vec<Listed>, Option<String>);

/// What a part of a list has, and what the next one is asked for with.
fn page(url: &Url, body: &[u8], now_s: Option<u64>) -> Result<Page, StoreError> {
    let text = std::str::from_utf8(body).map_err(|_| senseless(url, "is no UTF-8 text"))?;
    let is_cut = match inside(text, "IsTruncated") {
        Some("true") => true,
        Some("false") => false,
        _ => return Err(senseless(url, "does not say whether it is whole")),
    };
    let listed = |one: &str| {
        let modified_s = inside(one, "LastModified").and_then(date::of_list);
        Some(Listed {
            key: unescaped(inside(one, "Key")?),
            bytes: inside(one, "Size")?.parse().ok()?,
            age_s: modified_s.and_then(|then| Some(now_s?.saturating_sub(then))),
        })
    };
    let found: Option<Vec<_>> = elements(text, "Contents").map(listed).collect();
    let found = found.ok_or_else(|| senseless(url, "has objects without key and size"))?;
    let token = inside(text, "NextContinuationToken").map(unescaped).filter(|token| !token.is_empty());
    match (is_cut, token) {
        (true, None) => Err(senseless(url, "is cut and does not say where")),
        (cut, token) => Ok((found, token.filter(|_| cut))),
    }
}

/// The same of Azure's lists (List Blobs).
fn page_of_azure(url: &Url, body: &[u8], now_s: Option<u64>) -> Result<Page, StoreError> {
    let text = std::str::from_utf8(body).map_err(|_| senseless(url, "is no UTF-8 text"))?;
    let is_whole = text.contains("<EnumerationResults") && text.contains("</EnumerationResults>");
    if !is_whole || !text.contains("<NextMarker") {
        return Err(senseless(url, "does not say whether it is whole"));
    }
    let listed = |one: &str| {
        let modified_s = inside(one, "Last-Modified").and_then(date::of_field);
        Some(Listed {
            key: unescaped(inside(one, "Name")?),
            bytes: inside(one, "Content-Length")?.parse().ok()?,
            age_s: modified_s.and_then(|then| Some(now_s?.saturating_sub(then))),
        })
    };
    let found: Option<Vec<_>> = elements(text, "Blob").map(listed).collect();
    let found = found.ok_or_else(|| senseless(url, "has blobs without name and length"))?;
    Ok((found, inside(text, "NextMarker").map(unescaped).filter(|marker| !marker.is_empty())))
}

fn senseless(url: &Url, what: &str) -> StoreError {
    StoreError::Answer { url: url.clone(), what: format!("to a list of objects {what}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<(Vec<Listed>, Option<String>), String> {
        let url = Url::parse("http://h/images?list-type=2").unwrap();
        page(&url, body.as_bytes(), Some(951_782_400)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_says_keys_sizes_and_ages_and_how_it_goes_on() {
        let whole = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>\
            <Contents><Key>a/&lt;b&gt;</Key><LastModified>2000-02-28T23:59:59.000Z</LastModified><Size>7</Size></Contents>\
            <Contents><Key>c</Key><LastModified>yesterday</LastModified><Size>0</Size></Contents></ListBucketResult>";
        let one = |key: &str, bytes, age_s| Listed { key: key.to_owned(), bytes, age_s };
        let found = vec![one("a/<b>", 7, Some(1)), one("c", 0, None)];
        assert_eq!(read(whole), Ok((found, Some("a&b".to_owned()))));
        let empty = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
        assert_eq!(read(empty), Ok((Vec::new(), None)));
    }

    #[test]
    fn a_list_of_azure_says_the_same_in_its_own_words() {
        let read = |body: &str| {
            let url = Url::parse("http://h/me/images?comp=list").unwrap();
            page_of_azure(&url, body.as_bytes(), Some(951_782_400)).map_err(|error| error.to_string())
        };
        let blob = "<Blob><Name>a/&lt;b&gt;</Name><Properties><Last-Modified>Mon, 28 Feb 2000 23:59:59 GMT</Last-Modified>\
            <Content-Length>7</Content-Length></Properties></Blob>";
        let list = |blobs: &str, marker: &str| {
            format!(
                "<?xml?><EnumerationResults A=\"b\"><Blobs>{blobs}<BlobPrefix><Name>c/</Name></BlobPrefix></Blobs>{marker}</EnumerationResults>"
            )
        };
        let found = vec![Listed { key: "a/<b>".to_owned(), bytes: 7, age_s: Some(1) }];
        let cut = list(blob, "<NextMarker>2!x&amp;y</NextMarker>");
        assert_eq!(read(&cut), Ok((found.clone(), Some("2!x&y".to_owned()))));
        assert_eq!(read(&list(blob, "<NextMarker />")), Ok((found, None)));
        for body in ["<html/>", &cut[..cut.len() - 30], &list(blob, "")] {
            let error = read(body).unwrap_err();
            assert!(error.contains("does not say whether it is whole"), "{error}");
        }
        let error = read(&list("<Blob><Name>a</Name></Blob>", "<NextMarker/>")).unwrap_err();
        assert!(error.contains("without name and length"), "{error}");
    }

    /// A list that was cut off was taken for whole: what was missing in it was named by nothing.
    #[test]
    fn a_list_that_may_not_be_whole_is_an_error() {
        for (body, says) in [
            ("<html>busy</html>", "does not say whether it is whole"),
            ("<IsTruncated>true</IsTruncated>", "is cut and does not say where"),
            ("<IsTruncated>false</IsTruncated><Contents><Key>a</Key></Contents>", "without key and size"),
        ] {
            let said = read(body).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }
}
