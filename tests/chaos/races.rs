//! Commands that race the time of a key: each is sent within two milliseconds of that time, before
//! it or after it. The answer tells whether the key was still there, and so what its job must do.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::journal::{Answer, Ask};
use crate::order::Plan;
use crate::plain::{Program, ms, some_kind, some_plan};

/// How far from the time of its key a command is sent, at most.
pub(crate) const CLOSE: Duration = Duration::from_millis(2);

/// The most commands on one key, beside the first.
const STEPS: usize = 5;

/// The life of a key in ms, after each command.
const LIFE: std::ops::Range<u64> = 300..1200;

/// How long after its expiry a key is set anew, in ms: while its workers may still have to look, or
/// later than its job may begin.
const SOON: std::ops::Range<u64> = 150..2000;
const ANEW: std::ops::Range<u64> = 5000..6000;

/// How late a timer of the runtime may be. The rest of a wait is spent awake.
const TIMER: Duration = Duration::from_millis(2);

/// The commands on one key.
pub(crate) struct Race {
    key: String,
    plan: Plan,
    life: Duration,
    steps: Vec<Step>,
    /// If a command finds the key gone, it is set anew after so long, and the other commands
    /// follow.
    anew: Option<Duration>,
}

struct Step {
    command: Command,
    life: Duration,
    is_early: bool,
    /// How far from the time of the key.
    off: Duration,
}

#[derive(Clone, Copy)]
enum Command {
    Expire,
    GetEx,
    Set,
    /// Another key gets this name, with its value and its time.
    RenameTo,
    Persist,
    GetExPersist,
    Delete,
    GetDelete,
    /// The key gets another name.
    RenameFrom,
}

impl Race {
    pub(crate) fn imagine(random: &mut StdRng, number: f64) -> Self {
        let steps = (0..STEPS).map(|_| Step {
            command: match random.random_range(0..100) {
                0..25 => Command::Expire,
                25..45 => Command::GetEx,
                45..60 => Command::Set,
                60..68 => Command::RenameTo,
                68..76 => Command::Persist,
                76..82 => Command::GetExPersist,
                82..90 => Command::Delete,
                90..95 => Command::GetDelete,
                _ => Command::RenameFrom,
            },
            life: Duration::from_millis(random.random_range(LIFE)),
            is_early: random.random(),
            off: random.random_range(Duration::ZERO..CLOSE),
        });
        let steps = steps.collect();
        let anew = match random.random_range(0..3) {
            0 => Some(SOON),
            1 => Some(ANEW),
            _ => None,
        };
        Race {
            key: format!("{}:{number}", some_kind(random)),
            plan: some_plan(random),
            life: Duration::from_millis(random.random_range(LIFE)),
            steps,
            anew: anew.map(|anew| Duration::from_millis(random.random_range(anew))),
        }
    }
}

impl Program {
    /// Runs a race. `None` if the program has to stop.
    pub(crate) async fn race(&self, race: Race) -> Option<()> {
        let Race { key, life, .. } = &race;
        let sent = Instant::now();
        self.set(key, race.plan, Some(*life)).await?;
        let mut due = middle(sent) + *life;
        for step in &race.steps {
            self.wait_until(match step.is_early {
                true => due - step.off,
                false => due + step.off,
            })
            .await?;
            let mut sent = Instant::now();
            let mut life = step.life;
            match (self.step(key, step).await?, step.command) {
                (Answer::Absent, _) => {
                    self.wait(race.anew?).await?;
                    (sent, life) = (Instant::now(), race.life);
                    self.set(key, Plan::Done, Some(life)).await?;
                }
                (_, Command::Expire | Command::GetEx | Command::Set | Command::RenameTo) => {}
                // Nothing is left to race.
                _ => return None,
            }
            due = middle(sent) + life;
        }
        None
    }

    async fn step(&self, key: &str, Step { command, life, .. }: &Step) -> Option<Answer> {
        let named = |command| {
            let mut command = redis::cmd(command);
            command.arg(key);
            command
        };
        let expire = Ask::Expire {
            ms: ms(*life),
            named: false,
        };
        let elsewhere = format!("chaos-elsewhere:{key}");
        let (ask, command) = match command {
            Command::Set => return self.set(key, Plan::Done, Some(*life)).await,
            Command::RenameTo => {
                let (version, order) = self.order(Plan::Done);
                let ms = ms(*life);
                // In one step, so that the answer holds for the time of the change.
                let script = "local was = redis.call('EXISTS', KEYS[1])\n\
                              redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])\n\
                              redis.call('RENAME', KEYS[2], KEYS[1])\n\
                              return was";
                let mut rename = redis::cmd("EVAL");
                rename.arg(script).arg(2).arg(key).arg(elsewhere);
                rename.arg(order).arg(ms);
                let ms = Some(ms);
                (Ask::Set { version, ms }, rename)
            }
            Command::Expire => (expire, named("PEXPIRE").arg(ms(*life)).to_owned()),
            Command::GetEx => (expire, named("GETEX").arg("PX").arg(ms(*life)).to_owned()),
            Command::Persist => (Ask::Persist, named("PERSIST")),
            Command::GetExPersist => (Ask::Persist, named("GETEX").arg("PERSIST").to_owned()),
            Command::Delete => (Ask::Delete, named("DEL")),
            Command::GetDelete => (Ask::Delete, named("GETDEL")),
            Command::RenameFrom => (Ask::Delete, named("RENAME").arg(elsewhere).to_owned()),
        };
        self.ask(key, ask, &command).await
    }

    async fn wait_until(&self, at: Instant) -> Option<()> {
        let left = at.saturating_duration_since(Instant::now());
        self.wait(left.saturating_sub(TIMER)).await?;
        while Instant::now() < at {
            yield_now().await;
        }
        Some(())
    }
}

/// The time at which Redis carried a command out, approximately, that was sent then and has just
/// been answered.
fn middle(sent: Instant) -> Instant {
    sent + sent.elapsed() / 2
}
