//! The arguments of a step.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use keyfall_daemon::duration;
use keyfall_daemon::shapes::Time;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The arguments of a step, which has all that are read.
pub(super) struct Given(Value);

impl Given {
    pub(super) fn new(with: Value) -> Self {
        Given(with)
    }

    /// An argument of any type; `None` if it is not given.
    pub(super) fn some<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let value = self.0.get(name)?.clone();
        Some(serde_json::from_value(value).unwrap())
    }

    pub(super) fn must<T: DeserializeOwned>(&self, name: &str) -> T {
        self.some(name)
            .unwrap_or_else(|| panic!("there is no {name}"))
    }

    pub(super) fn key(&self) -> String {
        self.must("key")
    }

    pub(super) fn payload(&self) -> Vec<u8> {
        match self.some::<String>("bytes") {
            Some(bytes) => BASE64_STANDARD.decode(bytes).unwrap(),
            None => self.must::<Value>("payload").to_string().into_bytes(),
        }
    }

    pub(super) fn duration(&self, name: &str) -> Option<Duration> {
        let text = self.some::<String>(name)?;
        Some(duration::parse(&text).unwrap())
    }

    pub(super) fn time(&self, name: &str) -> Option<SystemTime> {
        self.some(name).map(|Time(time)| time)
    }
}
