//! One step, as a machine whose states are types:
//! [`Streaming`] → [`Materialized`] → ([`ToolBatch`] →) [`CommitCandidate`] → [`CommittedStep`].
//! Every state but the last is discarded by dropping it.

use tokio::task::coop::consume_budget;

use super::append::append;
use super::batch::ToolBatch;
use super::hooks::{HookResult, Operation};
use super::model::Answering;
use super::reply::Accumulator;
use super::turn::{StepContext, Stop};
use super::unwanted::Unwanted;
use super::{ModelEvent, ModelRequest};
use crate::contain::contained;
use crate::content::{AssistantMessage, StorableReply, ToolResultMessage, Usage};
use crate::event::{Body, ErrorKind, Kind, TokenDelta};
use crate::store::{Group, Last, StepDraft, Turn};

/// The model's answer is coming.
pub(super) struct Streaming<'a> {
    context: &'a StepContext<'a>,
    hook: Operation,
    stream: Answering,
    reply: Accumulator,
    usage: Option<Usage>,
    /// Tells what goes on beside the stream when the answer is no longer wanted.
    unwanted: Unwanted,
}

impl<'a> Streaming<'a> {
    /// Asks the model, unless a guard refuses.
    pub(super) async fn begin(context: &'a StepContext<'a>) -> Result<Streaming<'a>, Stop> {
        let (unwanted, cancel) = Unwanted::new();
        let reading = context.session.submit_context(context.at.loop_id);
        let read = tokio::select! {
            biased;
            read = reading => read,
            () = context.cancel.cancelled() => return Err(Stop::Cancelled),
        };
        let messages = match read {
            Ok(Ok(messages)) => messages,
            Ok(Err(error)) => return Err(Stop::failed(ErrorKind::Unknown, error)),
            Err(gone) => return Err(Stop::failed(ErrorKind::Unknown, gone)),
        };
        let hooks = &context.agent.hooks;
        let hook = hooks.inference(context.at, &messages);
        let hook = hook.map_err(|denial| Stop::failed(ErrorKind::Unknown, denial))?;
        let request = ModelRequest {
            messages,
            tools: context.agent.specs.clone(),
            coordinates: context.at,
            turn_index: context.turn_index,
            step_index: context.step_index,
            cancel,
        };
        let model = context.agent.model.get();
        let stream = contained(|| model.map(|model| model.stream(request)));
        let stream = stream.map_err(Stop::panicked)?;
        Ok(Streaming {
            context,
            hook,
            stream: Answering::new(stream),
            reply: Accumulator::new(context.agent.limits.reply_bytes),
            usage: None,
            unwanted,
        })
    }

    /// The whole answer. A cancellation or a failure on the way discards all of it.
    pub(super) async fn materialize(mut self) -> Result<Materialized, Stop> {
        // Given up if this is dropped or panics.
        let hook = std::mem::take(&mut self.hook);
        let answered = self.answer().await;
        hook.finish_with(|| match &answered {
            Ok(_) => HookResult::Done,
            Err(stop) => stop.result(),
        });
        answered
    }

    async fn answer(mut self) -> Result<Materialized, Stop> {
        loop {
            // An answer that is always ready must not keep the actor from its commands.
            consume_budget().await;
            let item = tokio::select! {
                biased;
                () = self.context.cancel.cancelled() => return Err(Stop::Cancelled),
                item = self.stream.next() => item,
            };
            match item.map_err(Stop::panicked)? {
                Some(Ok(ModelEvent::Chunk(chunk))) => {
                    // Shown first, then folded: who watches is never behind what is stored.
                    self.context.emit(TokenDelta {
                        turn_index: self.context.turn_index,
                        chunk: chunk.clone(),
                    });
                    self.reply
                        .fold(&chunk)
                        .map_err(|error| Stop::failed(ErrorKind::Unknown, error))?;
                }
                Some(Ok(ModelEvent::Usage(usage))) => self.usage = Some(usage),
                Some(Err(error)) => {
                    // A provider may answer a cancellation with an error.
                    self.context.go_on()?;
                    return Err(Stop::failed(ErrorKind::Unknown, error));
                }
                None => break,
            }
        }
        // Or with the end of its answer.
        self.context.go_on()?;
        self.unwanted.disarm();
        let reply = self.reply.finish();
        if reply.is_empty_response() {
            let why = "the answer of the model holds nothing";
            return Err(Stop::failed(ErrorKind::EmptyResponse, why));
        }
        Ok(Materialized {
            reply,
            usage: self.usage,
        })
    }
}

/// The model's answer is there: one assistant message.
pub(super) struct Materialized {
    reply: StorableReply,
    usage: Option<Usage>,
}

/// What follows an answer.
pub(super) enum Next {
    Commit(CommitCandidate),
    Tools(ToolBatch),
}

impl Materialized {
    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Two views of the calls: the stored one in the message, the raw one to be run.
    pub(super) fn next(self) -> Next {
        let message = self.reply.message(self.usage);
        let calls: Vec<_> = self.reply.calls().cloned().collect();
        if calls.is_empty() {
            return Next::Commit(CommitCandidate {
                message,
                results: Vec::new(),
                decided: Vec::new(),
                gated: false,
                last: true,
            });
        }
        Next::Tools(ToolBatch::new(message, calls))
    }
}

/// A whole step, not yet offered to the store.
pub(super) struct CommitCandidate {
    pub(super) message: AssistantMessage,
    pub(super) results: Vec<ToolResultMessage>,
    /// What was decided about its calls; durable with it.
    pub(super) decided: Vec<Body>,
    /// Whether gates may have been opened in it.
    pub(super) gated: bool,
    /// Whether it ends the turn.
    pub(super) last: bool,
}

impl CommitCandidate {
    /// Offers the step to the store. A cancellation is honoured before the append is submitted and
    /// never after: from then on this waits for its outcome (design, section 3).
    pub(super) async fn commit(
        self,
        turn: &mut Turn<'_>,
        context: &StepContext<'_>,
        spent: Option<Usage>,
    ) -> Result<CommittedStep, Stop> {
        context.go_on()?;
        let last = match self.last {
            true => Last::Yes { usage: spent },
            false => Last::No,
        };
        let message = self.last.then(|| self.message.clone());
        let draft = StepDraft::new(self.message)
            .results(self.results)
            .id(context.at.step);
        let mut kinds: Vec<Kind> = self.decided.iter().map(Body::kind).collect();
        kinds.push(Kind::StepDone);
        if self.last {
            kinds.push(Kind::TurnDone);
        }
        let commit = turn.commit_group_async(self.decided, draft, last, self.gated);
        let group = append(&context.agent.hooks, context.at, &kinds, commit, |group| {
            group.terminal.unwrap_or(group.step)
        })
        .await
        .map_err(Stop::of_commit)?;
        Ok(CommittedStep {
            group,
            last: message,
        })
    }
}

/// A step that is durable, in live history and published.
pub(super) struct CommittedStep {
    pub(super) group: Group,
    /// The message, if it ended the turn.
    pub(super) last: Option<AssistantMessage>,
}
