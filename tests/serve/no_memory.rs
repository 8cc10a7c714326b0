//! A server whose memory is limited: a request that finds none fails, and the server goes on. It ended at the first allocation that failed,
//! with all its clients.

use black_box::client::Request;
use black_box::server::Start;
use black_box::{Client, Scratch};

use super::create;

/// NBD's number for "out of memory".
const ENOMEM: u32 = 12;

#[test]
fn a_request_that_finds_no_memory_fails_and_the_server_goes_on() {
    let scratch = Scratch::new();
    let path = create(&scratch, "disk.qcow2", "2G");
    // Less than the clients below ask for together, more than the program needs.
    let start = Start::under("prlimit", ["--as=360000000"], ["--threads", "2", &path]);
    let server = start.listen().unwrap_or_else(|error| panic!("{}", error.0));
    let data = vec![6; 32 << 20];
    let mut clients: Vec<Client> = (0..10).map(|_| server.client("")).collect();
    let sent =
        |(number, client): (u64, &mut Client)| client.send(&Request::write(number * (32 << 20), &data));
    (0..).zip(&mut clients).map(sent).for_each(|sent| assert!(sent.is_ok(), "{sent:?}"));
    for client in &mut clients {
        let error = client.receive().expect("an answer").error;
        assert!(error == 0 || error == ENOMEM, "{error}");
    }
    drop(clients);
    let mut client = server.client("");
    client.write(0, &[7; 4096]).expect("a write");
    assert_eq!(client.read(0, 4096).expect("a read"), [7; 4096]);
    drop(client);
    server.stop();
}
