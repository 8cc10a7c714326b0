//! Stores of three services, and the places that give credentials for them, each at a port of this machine.

#![expect(clippy::unwrap_used, reason = "a test that fails to set up has failed")]

mod credentials;
mod objects;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use black_box::{Cloud, FakeCloud};
use remote::s3::{Credentials, Environment, Place, Service, Settings, Store, StoreOptions};

/// The service that a cloud has.
fn service(cloud: Cloud) -> Service {
    match cloud {
        Cloud::Amazon => Service::S3,
        Cloud::Google => Service::Google,
        Cloud::Azure => Service::Azure,
    }
}

/// Variables, and no file of this machine.
fn environment(variables: Vec<(&'static str, String)>) -> Environment {
    let variables: HashMap<&str, String> = variables.into_iter().collect();
    Environment::new(move |name| variables.get(name).cloned())
}

/// The bucket `images` of a cloud, with the credentials that `variables` lead to.
fn store(cloud: Cloud, fake: &FakeCloud, variables: Vec<(&'static str, String)>) -> Arc<Store> {
    let service = service(cloud);
    let environment = environment([fake.variables()[..1].to_vec(), variables].concat());
    let endpoint = Settings::look_up(service, &environment).unwrap().endpoint;
    let options = StoreOptions {
        place: Place { service, endpoint, region: "us-east-1".to_owned(), addressing: None },
        bucket: "images".to_owned(),
        credentials: Credentials::new(service, environment, None).unwrap(),
        tls: None,
        timeout: Duration::from_secs(5),
        remote_timeout: Some(Duration::from_secs(2)),
    };
    Arc::new(Store::new(options).unwrap())
}

fn run<T>(work: impl Future<Output = T>) -> T {
    reactor::Reactor::new(reactor::Backend::Ring).unwrap().run(work)
}
