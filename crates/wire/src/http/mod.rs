//! HTTP requests and answers, as far as reading ranges of a file and writing whole files need them.

//!
//! RFC 9110 (what fields mean) and RFC 9112 (bytes on the wire). Nothing here waits, connects or looks at a clock.

mod answer;
mod basic;
pub mod date;
pub mod hash;
mod request;
mod url;
mod validator;

pub use answer::{Answer, AnswerError, ContentRange, Length, UPLOAD_FIELDS, next_piece};
pub use basic::basic_authorization;
pub use request::{FieldError, Fields, Get, Payload, Request};
pub use url::{Origin, Scheme, Url, UrlError, shown};
pub use validator::Validator;
