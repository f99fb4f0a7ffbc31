//! One suite over all targets: each target keeps the promises of a route.
//!
//! | part | content |
//! |---|---|
//! | [`target`] | the interface of a target under test, and its nature |
//! | [`scenarios`] | the scenarios that each target passes |
//! | [`function`], [`callback`], [`list`], [`stream`], [`pull`], [`api`], [`classic`] | the targets |
//! | [`daemon`] | the shared part of the last two |
//!
//! A failure names both: `conformance::list_acknowledged::the_worker_dies_before`. The
//! [`Nature`](target::Nature) of a target lists the abilities that it lacks; for these the scenario
//! proves the behaviour that replaces them.

mod api;
mod callback;
mod classic;
mod daemon;
mod function;
mod list;
mod pull;
mod scenarios;
mod stream;
mod target;

/// The scenarios that all targets pass, and the scenarios that only some of them can pass.
macro_rules! conforms {
    ($($name:ident: $target:ty $(, $more:ident)*;)*) => {$(
        mod $name {
            use super::*;

            conforms!(@all $target);
            $(conforms!(@$more $target);)*
        }
    )*};
    (@all $target:ty) => {
        conforms!(@each $target:
            a_job_is_delivered_once
            a_consumer_vanishes
            a_job_is_cancelled_in_time
            the_worker_dies_before
            the_worker_dies_meanwhile
            the_worker_dies_after
        );
    };
    // A consumer can report a failure.
    (@fails $target:ty) => {
        conforms!(@each $target: failures_climb_the_ladder_and_are_buried);
    };
    // The job belongs to its consumer, also when the worker dies.
    (@leased $target:ty) => {
        conforms!(@each $target: worker_and_consumer_die_together);
    };
    // Its route can be limited.
    (@limited $target:ty) => {
        conforms!(@each $target: the_concurrency_is_kept the_rate_is_kept);
    };
    // The route cannot be limited, and nothing else holds jobs back.
    (@unlimited $target:ty) => {
        conforms!(@each $target: jobs_do_not_wait_for_each_other);
    };
    (@each $target:ty: $($scenario:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scenario() {
            scenarios::$scenario::<$target>().await;
        }
    )*};
}

conforms! {
    in_process: function::Function, fails, limited;
    http_callback: callback::Callback, fails, limited;
    list_handed_over: list::List<false>, limited;
    list_acknowledged: list::List<true>, fails, leased, limited;
    stream_handed_over: stream::Stream<false>, limited;
    stream_acknowledged: stream::Stream<true>, fails, leased, limited;
    pulled: pull::Pull, fails, leased, limited;
    pulled_over_http: api::Api, fails, leased, limited;
    popped: classic::Classic, leased, unlimited;
}
