//! Authorization: a handler gets access to Redis by naming the scope, and the keys of the jobs.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use keyfall::{Client, JobKey};

use super::Api;
use super::pages;
use super::problem::Problem;
use super::rate::Who;

/// How often a long call checks its rights. Together with the time in which the tokens notice a
/// change of their file, it is less than a second.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// A right of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Looking at jobs, kinds and instances.
    Read,
    /// Scheduling jobs, changing and cancelling them, one at a time.
    Schedule,
    /// Pulling jobs, and settling their leases.
    Consume,
    /// Changes of many jobs at once, of dead letters, and of whole kinds.
    Operate,
}

/// The known tokens. Without them, every client that reaches the daemon may do everything.
pub(crate) trait Tokens: Send + Sync + 'static {
    /// The rights of the bearer of this token. `None` if it does not exist, or was revoked.
    fn check(&self, bearer: &str) -> Option<Arc<dyn Grant>>;
}

/// The rights of the bearer of a token.
pub(crate) trait Grant: Send + Sync + 'static {
    /// The name of the token: in the log, and for counting its requests.
    fn id(&self) -> &str;

    /// The holder of the token, and its purpose; empty if nothing was noted.
    fn note(&self) -> &str {
        ""
    }

    /// Whether it allows this with every job whose key has this prefix. A whole key is such a
    /// prefix as well; the empty text means all jobs.
    fn allows(&self, scope: Scope, prefix: &str) -> bool;

    fn scopes(&self) -> Vec<Scope>;

    /// The prefixes of the job keys that it is for; the empty text means all jobs.
    fn prefixes(&self) -> Vec<String>;
}

/// The client that makes a request.
#[derive(Clone)]
pub(super) struct Caller {
    api: Arc<Api>,
    /// `None` if there are no tokens.
    token: Option<Token>,
    who: Who,
    /// The name of the caller in the log of actions; `None` for a caller in this process.
    operator: Option<Arc<str>>,
    /// Whether calls on single jobs are actions of an operator.
    is_operating: bool,
}

/// The header with which a program for people, such as the web page, asks for its calls on single
/// jobs to be logged as actions.
const ACTION: &str = "x-keyfall-action";

/// The token of a request, which is checked as long as the request is open.
#[derive(Clone)]
struct Token {
    bearer: Arc<str>,
    id: Arc<str>,
}

impl Caller {
    /// The client of a request with these headers, from this address.
    pub(super) fn identify(
        api: &Arc<Api>,
        headers: &HeaderMap,
        peer: SocketAddr,
    ) -> Result<Self, Problem> {
        let mut operator = (peer.port() != 0).then(|| Arc::from(peer.ip().to_string()));
        let token = match &api.tokens {
            None => {
                pages::refuse(headers)?;
                None
            }
            Some(tokens) => {
                let bearer = bearer(headers).ok_or_else(|| {
                    Problem::unauthorized("a token is needed: send `authorization: Bearer …`")
                })?;
                let grant = checked(&**tokens, bearer)?;
                operator = Some(match grant.note() {
                    "" => grant.id().into(),
                    note => format!("{} ({note})", grant.id()).into(),
                });
                Some(Token {
                    bearer: bearer.into(),
                    id: grant.id().into(),
                })
            }
        };
        let who = match &token {
            Some(token) => Who::Token(token.id.clone()),
            None => Who::peer(peer.ip()),
        };
        Ok(Caller {
            api: api.clone(),
            token,
            who,
            operator,
            is_operating: headers.contains_key(ACTION),
        })
    }

    /// The name of this caller in the log of actions: token and note, or address. `None` for a
    /// caller in this process.
    pub(super) fn operator(&self) -> Option<&str> {
        self.operator.as_deref()
    }

    /// The client for the log of actions, which needs no right: the action had it.
    pub(super) fn logging(&self) -> &Client {
        &self.api.client
    }

    /// Whether calls on single jobs are actions of an operator.
    pub(super) fn is_operating(&self) -> bool {
        self.is_operating
    }

    /// The client with which this caller schedules; it counts the new kinds of the caller.
    pub(super) fn scheduling(&self) -> Client {
        let client = &self.api.client;
        match &self.api.new_kinds {
            Some(limit) => limit.limit(client, self.token()),
            None => client.clone(),
        }
    }

    /// The name of the token.
    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_ref().map(|token| &*token.id)
    }

    /// The party whose requests and jobs are counted together.
    pub(super) fn who(&self) -> &Who {
        &self.who
    }

    /// The rights of the token at this moment: since the request began, it may have been revoked,
    /// have expired, or have lost rights. `None` if there are no tokens.
    pub(super) fn grant(&self) -> Result<Option<Arc<dyn Grant>>, Problem> {
        match (&self.api.tokens, &self.token) {
            (Some(tokens), Some(token)) => checked(&**tokens, &token.bearer).map(Some),
            _ => Ok(None),
        }
    }

    /// Access to the jobs whose keys have this prefix, if this caller has the right for all of them
    /// now.
    pub(super) fn may(&self, scope: Scope, prefix: &str) -> Result<&Api, Problem> {
        let grant = self.grant()?;
        if grant.is_none_or(|grant| grant.allows(scope, prefix)) {
            return Ok(&self.api);
        }
        let scope = scope.as_str();
        Err(Problem::forbidden(if prefix.is_empty() {
            format!("this needs a token with the scope `{scope}` for all jobs")
        } else {
            format!("this needs a token with the scope `{scope}` for all of {prefix:?}")
        }))
    }

    /// Access to one job.
    pub(super) fn may_with(&self, scope: Scope, key: &JobKey) -> Result<&Api, Problem> {
        self.may(scope, key.as_str())
    }

    /// Access to the jobs whose keys have one of these prefixes, or to all, if there is none.
    pub(super) fn may_with_each(&self, scope: Scope, prefixes: &[String]) -> Result<&Api, Problem> {
        if prefixes.is_empty() {
            return self.may(scope, "");
        }
        for prefix in prefixes {
            self.may(scope, prefix)?;
        }
        Ok(&self.api)
    }

    /// Whether this caller has the right for all jobs whose keys have this prefix.
    pub(super) fn can(&self, scope: Scope, prefix: &str) -> bool {
        self.may(scope, prefix).is_ok()
    }

    /// Access for an answer that is filtered afterwards by the jobs that the caller
    /// [can](Self::can) see.
    pub(super) fn sees_its_own(&self) -> Result<&Api, Problem> {
        self.grant().map(|_| &*self.api)
    }

    /// Makes a long call, and breaks it off when the token of the caller no longer allows it.
    pub(super) async fn while_it_may<T>(
        &self,
        scope: Scope,
        prefixes: &[String],
        call: impl IntoFuture<Output = T>,
    ) -> Result<T, Problem> {
        let mut call = pin!(call.into_future());
        loop {
            tokio::select! {
                biased;
                done = &mut call => return Ok(done),
                () = tokio::time::sleep(LOOK), if self.token.is_some() => {}
            }
            self.may_with_each(scope, prefixes)
                .map_err(Problem::broken_off)?;
        }
    }
}

fn checked(tokens: &dyn Tokens, bearer: &str) -> Result<Arc<dyn Grant>, Problem> {
    tokens.check(bearer).ok_or_else(|| {
        Problem::unauthorized("this token is not known here, has expired, or was revoked")
    })
}

impl Scope {
    pub(super) const ALL: [Scope; 4] =
        [Scope::Read, Scope::Schedule, Scope::Consume, Scope::Operate];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Schedule => "schedule",
            Scope::Consume => "consume",
            Scope::Operate => "operate",
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned();
        caller.ok_or_else(|| Problem::unauthorized("the token was not checked"))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
