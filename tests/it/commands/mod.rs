//! Each command of the operator: its effect, its JSON, its refusals, and its exit code.

/// The same on a Redis and behind a daemon.
macro_rules! both_ways {
    ($($test:ident on $app:literal;)*) => {
        mod on_redis {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Site::new($app).await).await;
            })*
        }

        mod through_a_daemon {
            $(#[tokio::test]
            async fn $test() {
                let site = super::Site::new(concat!($app, "_api")).await;
                super::$test(site.through_a_daemon()).await;
            })*
        }
    };
}

mod grammar;
mod jobs;
mod kinds;
mod reach;
mod recur;
mod telling;

use serde_json::Value;

/// Keeps only these fields: the other fields differ from run to run.
fn only(mut value: Value, fields: &[&str]) -> Value {
    let object = value.as_object_mut().unwrap();
    object.retain(|name, _| fields.contains(&name.as_str()));
    value
}
