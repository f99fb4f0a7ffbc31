//! Who may do what. A handler reaches Redis by saying what for, and with which jobs.

use std::net::IpAddr;
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

/// How often a call that takes its time looks whether it still may. With what the tokens need to see
/// that their file has changed, it is less than a second.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Looking at jobs, kinds and instances.
    Read,
    /// Scheduling jobs, changing and cancelling them, one at a time.
    Schedule,
    /// Pulling jobs, and settling their leases.
    Consume,
    /// What is done with many jobs at once, with dead letters, and with whole kinds.
    Operate,
}

/// The tokens that were made. Without them, whoever reaches the daemon may do everything.
pub(crate) trait Tokens: Send + Sync + 'static {
    /// What the bearer of this token may do. `None` if nobody has made it, or it was revoked.
    fn check(&self, bearer: &str) -> Option<Arc<dyn Grant>>;
}

/// What the bearer of a token may do.
pub(crate) trait Grant: Send + Sync + 'static {
    /// What the token is called: in the log, and where its requests are counted.
    fn id(&self) -> &str;

    /// Whether it may do this with every job whose key begins so. A whole key is such a
    /// beginning as well; the empty text means all jobs.
    fn allows(&self, scope: Scope, prefix: &str) -> bool;
}

/// Whoever makes a request.
#[derive(Clone)]
pub(super) struct Caller {
    api: Arc<Api>,
    /// `None` if there are no tokens.
    token: Option<Token>,
    who: Who,
}

/// What a request came with, and is judged by as long as it is open.
#[derive(Clone)]
struct Token {
    bearer: Arc<str>,
    id: Arc<str>,
}

impl Caller {
    /// Who makes a request with these headers, from there.
    pub(super) fn identify(
        api: &Arc<Api>,
        headers: &HeaderMap,
        peer: IpAddr,
    ) -> Result<Self, Problem> {
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
                Some(Token {
                    bearer: bearer.into(),
                    id: grant.id().into(),
                })
            }
        };
        let who = match &token {
            Some(token) => Who::Token(token.id.clone()),
            None => Who::peer(peer),
        };
        Ok(Caller {
            api: api.clone(),
            token,
            who,
        })
    }

    /// The client by which this caller schedules: the kinds that begin by it are counted.
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

    /// Whose requests and jobs are counted together.
    pub(super) fn who(&self) -> &Who {
        &self.who
    }

    /// What the token allows at this moment: it may have been revoked since the request began, or
    /// have expired, or be good for less. `None` if there are no tokens.
    fn grant(&self) -> Result<Option<Arc<dyn Grant>>, Problem> {
        match (&self.api.tokens, &self.token) {
            (Some(tokens), Some(token)) => checked(&**tokens, &token.bearer).map(Some),
            _ => Ok(None),
        }
    }

    /// The way to the jobs whose keys begin so, if this caller may do that with all of them now.
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

    /// The way to one job.
    pub(super) fn may_with(&self, scope: Scope, key: &JobKey) -> Result<&Api, Problem> {
        self.may(scope, key.as_str())
    }

    /// The way to the jobs whose keys begin like one of these, or to all, if there is none.
    pub(super) fn may_with_each(&self, scope: Scope, prefixes: &[String]) -> Result<&Api, Problem> {
        if prefixes.is_empty() {
            return self.may(scope, "");
        }
        for prefix in prefixes {
            self.may(scope, prefix)?;
        }
        Ok(&self.api)
    }

    /// Whether this caller may do that with all jobs whose keys begin so.
    pub(super) fn can(&self, scope: Scope, prefix: &str) -> bool {
        self.may(scope, prefix).is_ok()
    }

    /// The way to what is filtered afterwards by what the caller [can](Self::can) see.
    pub(super) fn sees_its_own(&self) -> Result<&Api, Problem> {
        self.grant().map(|_| &*self.api)
    }

    /// Makes a call that may take its time, as long as this caller may do that: when the token does
    /// not allow it any more, the call is broken off.
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
        caller.ok_or_else(|| Problem::unauthorized("nobody has asked who you are"))
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}
