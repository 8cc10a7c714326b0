//! The task that sends.

use std::rc::Rc;
use std::sync::Arc;

use memory::{IoBuf, IoVec};
use net::tls::Transport;
use wire::nbd::{CommandFlags, RequestHeader, command_number};

use crate::nbd::connection::{Connection, Outgoing, ToSend};

/// Sends what there is to send, until the connection is lost or not used any more.
pub(crate) async fn run(connection: Arc<Connection>, transport: Rc<Transport>) {
    loop {
        let (data, last) = match connection.to_send().await {
            ToSend::Requests(requests) => (joined(&requests), false),
            ToSend::Goodbye => (goodbye(&connection), true),
            ToSend::Nothing => return,
        };
        if let Err(error) = transport.send_all(data).await {
            return connection.lose(&error.to_string());
        }
        if last {
            transport.close().await;
            return connection.lose("it was closed");
        }
    }
}

/// One message of many: their headers in one piece of memory, payloads as they are.
fn joined(requests: &[Outgoing]) -> IoVec {
    let mut headers = IoBuf::uninit(requests.iter().map(|request| request.header.len()).sum());
    let mut at = 0;
    for Outgoing { header, .. } in requests {
        if let Some(place) = headers.get_mut(at..at + header.len()) {
            place.copy_from_slice(header);
        }
        at += header.len();
    }
    let headers = headers.freeze();
    let (mut data, mut from, mut at) = (IoVec::new(), 0, 0);
    for Outgoing { header, payload } in requests {
        at += header.len();
        if !payload.is_empty() {
            data.push(headers.slice(from, at));
            data.append(payload.clone());
            from = at;
        }
    }
    data.push(headers.slice(from, at));
    data
}

fn goodbye(connection: &Connection) -> IoVec {
    let number = command_number::DISCONNECT;
    let header = RequestHeader { flags: CommandFlags::NONE, number, cookie: 0, offset: 0, len: 0 };
    memory::IoBytes::copy_from(&header.encode(connection.negotiated.dialect)).into()
}
