//! One suite over all topologies: each keeps the promises that Keyfall makes on a single Redis.
//!
//! | part | content |
//! |---|---|
//! | [`place`] | the interface of a topology under test, and shared servers |
//! | [`places`] | the topologies |
//! | [`calls`], [`working`] | the tests that hold in each of them |
//!
//! A failure names both: `topology::suite::cluster::paused_jobs_wait`. Tests of one topology share
//! its servers, and have an app each; only the test that restarts a node has its own servers.

mod calls;
mod place;
mod places;
mod working;

/// A line for each topology.
macro_rules! over {
    ($($name:ident: $place:ty;)*) => {$(
        mod $name {
            use super::*;

            over!(@each $place, calls:
                a_job_is_scheduled_changed_and_cancelled
                simultaneous_calls_are_each_answered
                many_jobs_are_counted_listed_and_changed_at_once
                another_namespace_has_other_jobs
            );
            over!(@each $place, working:
                jobs_run_once_and_not_before_they_are_due
                failures_are_retried_and_end_as_dead_letters
                successors_follow_and_cancelled_runs_are_told_to_stop
                paused_jobs_wait
                jobs_of_a_gone_worker_are_taken_over
                a_kind_gets_more_shards_under_load
                each_ended_job_leaves_one_record
                plain_keys_schedule_postpone_cancel_and_run
                a_restarted_node_loses_nothing
            );
        }
    )*};
    (@each $place:ty, $module:ident: $($test:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            $module::$test::<$place>().await;
        }
    )*};
}

over! {
    tcp: places::Tcp;
    unix_socket: places::UnixSocket;
    database: places::Database;
    sentinel: places::SentinelPlace;
    cluster: places::ClusterPlace;
    several: places::SeveralPlace;
}
