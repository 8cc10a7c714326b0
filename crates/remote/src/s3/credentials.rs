//! Credentials of a cloud: where they are looked for, and when they are renewed.

mod aws;
mod azure;
mod context;
mod google;
mod role;

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use async_lock::Mutex;
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, ProvideCredential, ProvideCredentialDyn};

pub use self::aws::aws;
pub use self::azure::{account, azure};
pub use self::context::files_read;
pub use self::google::google;

/// Credentials are renewed so long before they end, or after three quarters of their time if that is shorter.
const BEFORE_THE_END: Duration = Duration::from_secs(300);
/// They are not used when they end this soon: a request may take so long to arrive.
const USELESS: Duration = Duration::from_secs(25);

/// What can be signed with.
pub trait Ending: Clone + Send + Sync + Unpin + 'static {
    /// When it ends; `None`: never.
    fn ends(&self) -> Option<Timestamp>;
}

/// Called when credentials have been read, before they are used.
static WHEN_READ: parking_lot::Mutex<Option<fn()>> = parking_lot::Mutex::new(None);

/// Has `call` called whenever credentials have been read: a program may keep them out of its core dumps then.
pub fn when_read(call: fn()) {
    *WHEN_READ.lock() = Some(call);
}

/// One place where credentials may be.
struct Provider<C> {
    /// What messages call it.
    name: &'static str,
    provider: Box<dyn ProvideCredentialDyn<Credential = C>>,
    /// It is asked although nothing says that it is there: its failure means that it is not.
    is_guess: bool,
}

impl<C> Provider<C> {
    fn new(name: &'static str, provider: impl ProvideCredential<Credential = C>) -> Self {
        Self { name, provider: Box::new(provider), is_guess: false }
    }

    fn guess(name: &'static str, provider: impl ProvideCredential<Credential = C>) -> Self {
        Self { is_guess: true, ..Self::new(name, provider) }
    }
}

/// Credentials of one kind, for all who sign with them. Those that end are renewed by the first request that needs it, and others wait.
pub struct Source<C> {
    context: Context,
    /// In the order in which they are asked.
    providers: Vec<Provider<C>>,
    state: Mutex<State<C>>,
}

enum State<C> {
    Unknown,
    Known {
        credential: C,
        renew: Option<Timestamp>,
        from: &'static str,
    },
    /// There are none: requests are not signed.
    Nowhere,
}

impl<C> fmt::Debug for Source<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.providers.iter().map(|one| one.name)).finish()
    }
}

impl<C: Ending> Source<C> {
    fn new(context: Context, providers: Vec<Provider<C>>) -> Self {
        Self { context, providers, state: Mutex::new(State::Unknown) }
    }

    /// Without any.
    pub(crate) fn empty() -> Self {
        Self::new(Context::new(), Vec::new())
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Credentials without an end are read again by the next request: a disk is opened, and they may have been replaced.
    pub(crate) fn look_again(&self) {
        if let Some(mut state) = self.state.try_lock()
            && !matches!(*state, State::Known { renew: Some(_), .. })
        {
            *state = State::Unknown;
        }
    }

    /// Credentials that are good now; `None`: there are none.
    ///
    /// # Errors
    /// When a place that is said to have them does not, or those that there are cannot be renewed.
    pub(crate) async fn get(&self) -> Result<Option<C>, String> {
        let mut state = self.state.lock().await;
        let now = Timestamp::now();
        match &*state {
            State::Nowhere => return Ok(None),
            State::Known { credential, renew, .. } if renew.is_none_or(|renew| renew > now) => {
                return Ok(Some(credential.clone()));
            }
            State::Known { .. } | State::Unknown => {}
        }
        let old = std::mem::replace(&mut *state, State::Unknown);
        match (self.load().await, old) {
            (Ok(Some((credential, from))), _) => {
                if let Some(call) = *WHEN_READ.lock() {
                    call();
                }
                let renew = credential.ends().map(|ends| renewal(now, ends));
                *state = State::Known { credential: credential.clone(), renew, from };
                Ok(Some(credential))
            }
            (Ok(None), State::Unknown | State::Nowhere) => {
                *state = State::Nowhere;
                Ok(None)
            }
            (lost, State::Known { credential, from, .. }) => {
                let reason = lost.err().unwrap_or_else(|| format!("{from} has none any more"));
                let is_good = credential.ends().is_none_or(|ends| ends > now + USELESS);
                let renew = Some(now + Duration::from_secs(1));
                *state = State::Known { credential: credential.clone(), renew, from };
                if is_good {
                    tracing::warn!("credentials cannot be renewed yet: {reason}");
                    return Ok(Some(credential));
                }
                Err(format!("those that there were have ended, and {reason}"))
            }
            (Err(reason), State::Unknown | State::Nowhere) => Err(reason),
        }
    }

    /// Asks one place after the other.
    async fn load(&self) -> Result<Option<(C, &'static str)>, String> {
        for Provider { name, provider, is_guess } in &self.providers {
            match provider.provide_credential_dyn(&self.context).await {
                Ok(Some(credential)) => return Ok(Some((credential, name))),
                Ok(None) => {}
                Err(error) if *is_guess => tracing::debug!("no credentials from {name}: {}", words(&error)),
                Err(error) => return Err(format!("{name}: {}", words(&error))),
            }
        }
        Ok(None)
    }
}

/// An error with those of its causes that are ours: others may repeat what was read.
fn words(error: &Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause.and_then(|cause| cause.downcast_ref::<Error>()) {
        words.push_str(&format!(": {error}"));
        cause = error.source();
    }
    words
}

/// When credentials are renewed that were read `now`.
fn renewal(now: Timestamp, ends: Timestamp) -> Timestamp {
    let seconds = u64::try_from(ends.as_second() - now.as_second()).unwrap_or_default();
    let before = BEFORE_THE_END.min(Duration::from_secs(seconds / 4)).max(USELESS);
    ends - before
}
