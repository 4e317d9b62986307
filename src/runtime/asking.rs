//! Asking at a gate: the blocker is installed, the question becomes durable and is seen, the answer
//! becomes durable and is delivered. In this order, so that no answer can be lost (P2).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::append::{answered, last_seq};
use super::hooks::{HookResult, Hooks};
use super::waiters::Waiting;
use super::{Hub, NoTimer, Question, Resolution, timer};
use crate::content::RawJson;
use crate::event::{
    Body, Effect, GateOpened, Kind, PermissionDecided, PermissionRequested, UserInputRequested,
};
use crate::identity::{AgentName, Coordinates, GateId, MintError};
use crate::journal::Fault;
use crate::store::{
    Answer, AnswerError, CommitError, Draft, GateAnswer, GatedCall, PERMISSION, Refusal,
};

/// How long a timeout waits to be tried again that could not be committed.
const AGAIN: Duration = Duration::from_secs(1);

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The tool runs by itself, without a turn.
    #[error("there is nobody to ask")]
    NobodyToAsk,
    /// Nobody answered in time.
    #[error("nobody answered in time")]
    TimedOut,
    /// The turn is being interrupted, or somebody closed the gate without an answer.
    #[error("the question was given up")]
    Abandoned,
    /// The question could not be committed; nobody has seen it.
    #[error("the question could not be asked: {0}")]
    NotAsked(CommitError),
    /// The session was closed while the question waited. It is still listed after the next opening.
    #[error("the session was closed")]
    Closed,
    /// The session is faulted.
    #[error("the session is faulted: {0}")]
    Faulted(Fault),
    /// The question has a timeout, as every question has unless it says otherwise
    /// ([`Question::without_timeout`]), and there is no timer to keep it. Nobody has seen it: no gate
    /// was opened that a person could answer in vain. An answer that was recorded in an earlier turn is
    /// used all the same.
    #[error("the question was not asked, since it has a timeout: {0}")]
    NoTimer(#[from] NoTimer),
}

impl From<MintError> for AskError {
    fn from(error: MintError) -> Self {
        AskError::NotAsked(Refusal::from(error).into())
    }
}

/// The gates of one step.
#[derive(Debug)]
pub(super) struct StepGates {
    hub: Hub,
    hooks: Arc<Hooks>,
    agent: AgentName,
    at: Coordinates,
    cancel: CancellationToken,
    asked: Mutex<Asked>,
}

/// What came of the questions of a step.
#[derive(Debug, Default)]
struct Asked {
    /// Gates may have been opened.
    opened: bool,
    /// None will be: all calls have ended.
    closed: bool,
    /// The answers of earlier turns that the step uses.
    used: HashSet<GateId>,
    /// Their uses, durable with the step.
    decided: Vec<Body>,
}

impl StepGates {
    pub(super) fn new(
        hub: Hub,
        hooks: Arc<Hooks>,
        agent: AgentName,
        at: Coordinates,
        cancel: CancellationToken,
    ) -> StepGates {
        StepGates {
            hub,
            hooks,
            agent,
            at,
            cancel,
            asked: Mutex::default(),
        }
    }

    /// Ends the questions of the step. Gives the uses of recorded answers, to be committed with it,
    /// and whether gates may have been opened in it.
    pub(super) fn close(&self) -> (Vec<Body>, bool) {
        let mut asked = self.asked();
        asked.closed = true;
        (std::mem::take(&mut asked.decided), asked.opened)
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn draft(&self, body: impl Into<Body>) -> Draft {
        Draft::new(body)
            .in_loop(self.at.loop_id)
            .in_turn(self.at.turn)
            .in_step(self.at.step)
            .agent(self.agent.clone())
    }

    /// Asks about a call and waits. Dropping it gives up the waiting; the gate is closed with the
    /// turn, or with its step if that comes to be.
    pub(super) async fn ask(
        &self,
        call: &GatedCall,
        question: &Question,
    ) -> Result<Resolution, AskError> {
        if let Some(recorded) = self.recorded(call, question) {
            return Ok(recorded);
        }
        if question.policy().is_some() {
            timer::is_here()?;
        }
        let id = GateId::try_new()?;
        let mut waiting = self.hub.waiters().install(id);
        let request = match question.kind() == PERMISSION {
            true => Kind::PermissionRequested,
            false => Kind::UserInputRequested,
        };
        let operation = self.hooks.append(self.at, &[Kind::GateOpened, request]);
        let submitted = {
            // What a tool does beside its future may ask when its step is being committed: either it
            // is submitted before that, and closed with it, or not at all.
            let mut asked = self.asked();
            if asked.closed {
                return Err(AskError::Abandoned);
            }
            asked.opened = true;
            let batch = self.opening(id, call, question);
            self.hub.session().submit(batch)
        };
        let opened = self.unless_cancelled(submitted).await?;
        let opened = opened.map_err(CommitError::from).and_then(|done| done);
        answered(operation, &opened, last_seq);
        match opened {
            Ok(_) => {}
            Err(CommitError::Unknown { fault, .. }) => return Err(AskError::Faulted(fault)),
            Err(error) => return Err(AskError::NotAsked(error)),
        }
        let operation = self.hooks.gate_wait(self.at, id);
        let resolved = self.wait(id, question, &mut waiting);
        let resolved = self.unless_cancelled(resolved).await.and_then(|resolved| {
            // The slot is emptied only by an answer or by the end of the session.
            resolved.ok_or_else(|| match self.hub.fault() {
                Some(fault) => AskError::Faulted(fault),
                None => AskError::Closed,
            })
        });
        operation.finish_with(|| match &resolved {
            Ok(_) => HookResult::Done,
            Err(AskError::Abandoned) => HookResult::Cancelled,
            Err(error) => HookResult::Failed {
                error: error.to_string(),
            },
        });
        Ok(Resolution::of(&resolved?, false))
    }

    async fn unless_cancelled<T>(&self, future: impl Future<Output = T>) -> Result<T, AskError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(AskError::Abandoned),
            value = future => Ok(value),
        }
    }

    /// The question and what shows it, in one batch.
    fn opening(&self, id: GateId, call: &GatedCall, question: &Question) -> Vec<Draft> {
        let gate = question.gate(id, call);
        let prompt = question.prompt();
        let request: Body = if question.kind() == PERMISSION {
            #[derive(serde::Serialize)]
            struct Request<'a> {
                gate: GateId,
                tool: &'a str,
                call_id: &'a str,
                question: &'a str,
            }
            let request = RawJson::from_serialize(&Request {
                gate: id,
                tool: &call.tool,
                call_id: &call.call_id,
                question: &prompt.body,
            });
            Body::from(PermissionRequested {
                tool_execution_id: call.execution,
                request: request.unwrap_or_else(|_| RawJson::empty_object()),
            })
        } else {
            let choices = prompt.controls.iter();
            Body::from(UserInputRequested {
                tool_execution_id: call.execution,
                question: prompt.body.clone(),
                choices: choices.map(|control| control.action.clone()).collect(),
            })
        };
        vec![self.draft(GateOpened { gate }), self.draft(request)]
    }

    /// Until the gate is resolved, by whatever comes first: an answer, or the question's policy.
    async fn wait(
        &self,
        id: GateId,
        question: &Question,
        waiting: &mut Waiting,
    ) -> Option<crate::event::GateResolved> {
        let Some((after, action)) = question.policy() else {
            return waiting.resolved().await;
        };
        let mut patience = after;
        loop {
            tokio::select! {
                biased;
                resolved = waiting.resolved() => return resolved,
                () = tokio::time::sleep(patience) => {}
            }
            let answer = Answer::of_policy(action.to_owned(), "timeout");
            let operation = self.hooks.append(self.at, &[Kind::GateResolved]);
            let answered = self.hub.session().answer_gate_async(id, answer).await;
            operation.finish_with(|| match &answered {
                Ok(resolved) => HookResult::Appended {
                    last: resolved.seq(),
                },
                Err(error) => HookResult::Failed {
                    error: error.to_string(),
                },
            });
            match answered {
                // Committed now, or beaten by an answer: either is delivered.
                Ok(_)
                | Err(AnswerError::AlreadyAnswered { .. } | AnswerError::Abandoned { .. }) => {
                    return waiting.resolved().await;
                }
                Err(error) => {
                    tracing::warn!(gate = %id, %error, "a gate could not be closed by its timeout");
                    patience = AGAIN;
                }
            }
        }
    }

    /// The answer of a person to the same question about the same call, in a turn of this loop that
    /// ended before it came to use it. It is used once.
    fn recorded(&self, call: &GatedCall, question: &Question) -> Option<Resolution> {
        let mut asked = self.asked();
        let same = |answer: &GateAnswer| {
            let gate = &answer.opened.gate;
            let words = gate.prompt.as_ref().map(|prompt| prompt.body.as_str());
            answer.opened.loop_id == self.at.loop_id
                && answer.opened.turn != self.at.turn
                && gate.kind == question.kind()
                // A policy may word its question anew; what a tool wants to know is in the words.
                && (gate.kind == PERMISSION || words == Some(&question.prompt().body))
                && answer.opened.call().is_some_and(|before| {
                    before.tool == call.tool && before.input == call.input
                })
        };
        let answers = self.hub.session().gate_answers();
        let mut answers = answers.into_iter();
        let answer = answers.find(|it| !asked.used.contains(&it.resolved.gate_id) && same(it))?;
        let resolution = Resolution::of(&answer.resolved, true);
        asked.used.insert(resolution.gate);
        Some(resolution)
    }

    /// Notes that a recorded answer decided, for the batch of the step.
    pub(super) fn note(&self, call: &GatedCall, resolution: &Resolution, effect: Effect) {
        if !resolution.recorded {
            return;
        }
        let subject = std::collections::BTreeMap::from([("tool", call.tool.as_str())]);
        let decided = PermissionDecided {
            tool_execution_id: call.execution,
            gate_id: resolution.gate,
            effect,
            reason: "the answer of an earlier turn".to_owned(),
            subject: RawJson::from_serialize(&subject).ok(),
            audit: None,
        };
        self.asked().decided.push(decided.into());
    }
}

/// The gates that one running call may open.
#[derive(Debug, Clone)]
pub(super) struct CallGates {
    gates: Arc<StepGates>,
    call: Arc<GatedCall>,
}

impl CallGates {
    pub(super) fn new(gates: Arc<StepGates>, call: GatedCall) -> CallGates {
        let call = Arc::new(call);
        CallGates { gates, call }
    }

    pub(super) async fn ask(&self, question: Question) -> Result<String, AskError> {
        let resolution = self.gates.ask(&self.call, &question).await?;
        self.gates.note(&self.call, &resolution, Effect::Approve);
        match resolution {
            Resolution {
                text: Some(text), ..
            } => Ok(text),
            Resolution { action, .. } if !action.is_empty() => Ok(action),
            Resolution {
                by_person: false, ..
            } => Err(AskError::TimedOut),
            _ => Err(AskError::Abandoned),
        }
    }
}

#[cfg(test)]
mod tests;
