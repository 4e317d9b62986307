//! The agent of the demo: a model that says its script in fragments, and tools that read and write
//! files (or give what a transcript recorded). Both note what they are about to give before they
//! give it.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use stepwell::content::{AssistantMessage, Block, Message, RawJson, ToolResultMessage};
use stepwell::event::Chunk;
use stepwell::identity::StepId;
use stepwell::runtime::{
    AgentSpec, Model, ModelError, ModelEvent, ModelRequest, ModelStream, Tool, ToolCallContext,
    ToolError, ToolOutput, ToolSpec, TurnLimits,
};

use super::books::{Digest, Ledger, Note};
use super::script::{Dice, Place, Script};

/// What stands for a recorded result without text.
const NOTHING: &str = "[no output]";
/// How long the agent pauses now and then, so that kills hit it at its work too, not only the disk.
const PAUSE: Duration = Duration::from_millis(1);
/// Fragments of a text.
const FRAGMENTS: usize = 6;

/// What model and tools share.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) script: Script,
    pub(super) ledger: Arc<Ledger>,
    pub(super) scratch: PathBuf,
    /// Where the running turn began in the script, and the step that runs now.
    state: Mutex<(Place, Option<(StepId, Place)>)>,
}

impl Stage {
    pub(super) fn new(script: Script, ledger: Arc<Ledger>, scratch: PathBuf) -> Stage {
        Stage {
            script,
            ledger,
            scratch,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, (Place, Option<(StepId, Place)>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next turn begins here in the script.
    pub(super) fn begin(&self, place: Place) {
        *self.state() = (place, None);
    }

    /// The agent of this stage. Its bounds are those of the script, not the runner's.
    pub(super) fn agent(self: &Arc<Self>) -> AgentSpec {
        let limits = TurnLimits {
            iterations: u32::MAX,
            calls: u32::MAX,
            result_bytes: None,
            reply_bytes: usize::MAX,
            ..TurnLimits::default()
        };
        let agent = AgentSpec::new(Scripted(self.clone())).limits(limits);
        self.script.tools().into_iter().fold(agent, |agent, name| {
            agent.tool(StageTool {
                stage: self.clone(),
                name,
            })
        })
    }

    fn pauses(&self, step: StepId) -> Dice {
        let (seed, _) = step.as_bytes().split_at(8);
        let seed = seed.try_into().map_or(0, u64::from_le_bytes);
        Dice::new(seed)
    }
}

struct Scripted(Arc<Stage>);

impl Model for Scripted {
    fn stream(&self, request: ModelRequest) -> ModelStream {
        let at = request.coordinates;
        let place = {
            let mut state = self.0.state();
            let place = state.0.plus(request.step_index as usize);
            state.1 = Some((at.step, place));
            place
        };
        let Some(step) = self.0.script.step(place) else {
            return ModelStream::ready([Err(ModelError::new("the script has no further answer"))]);
        };
        let message = step.assistant.clone();
        let mut dice = self.0.pauses(at.step);
        let ledger = self.0.ledger.clone();
        ledger.note(&Note::Answering { step: at.step });
        let (sender, stream) = ModelStream::channel(1);
        tokio::spawn(async move {
            let mut events = fragments(&message, &mut dice);
            let last = events.pop();
            for event in events {
                if dice.below(4) == 0 {
                    tokio::time::sleep(PAUSE).await;
                }
                if !sender.send(Ok(event)).await {
                    return;
                }
            }
            ledger.note(&Note::Offered {
                session: at.session,
                step: at.step,
                assistant: Digest::of(&Message::Assistant(message)),
            });
            if let Some(last) = last {
                sender.send(Ok(last)).await;
            }
            sender.finish().await;
        });
        stream
    }
}

/// An answer as a provider streams it: the blocks one after the other, each in pieces.
fn fragments(message: &AssistantMessage, dice: &mut Dice) -> Vec<ModelEvent> {
    let mut events = Vec::new();
    for (index, block) in (0u32..).zip(&message.blocks) {
        match block {
            Block::Text { text } => {
                let pieces = pieces(text, dice).into_iter();
                events.extend(pieces.map(|piece| ModelEvent::text(index, piece)));
            }
            Block::Thinking(thinking) => {
                let told = |text: &str, signature: &str| {
                    ModelEvent::Chunk(Chunk::Thinking {
                        index,
                        text: text.to_owned(),
                        signature: signature.to_owned(),
                        signature_format: thinking.signature_format.clone(),
                        provider_state: None,
                        provider_state_format: String::new(),
                    })
                };
                let pieces = pieces(&thinking.thinking, dice).into_iter();
                events.extend(pieces.map(|piece| told(piece, "")));
                events.push(told("", &thinking.signature));
            }
            Block::ToolUse(call) => {
                let (id, name) = (call.id.clone(), call.name.clone());
                events.push(ModelEvent::Chunk(Chunk::ToolUse { index, id, name }));
                let pieces = pieces(call.input.get(), dice).into_iter();
                events.extend(pieces.map(|piece| {
                    let fragment = piece.as_bytes().to_vec();
                    ModelEvent::Chunk(Chunk::ToolInput { index, fragment })
                }));
            }
            // Scripts hold no others.
            _ => {}
        }
    }
    events.extend(message.usage.map(ModelEvent::Usage));
    events
}

/// Cuts a text between characters into at most [`FRAGMENTS`] pieces.
fn pieces<'a>(text: &'a str, dice: &mut Dice) -> Vec<&'a str> {
    let mut pieces = Vec::with_capacity(FRAGMENTS);
    let mut rest = text;
    while pieces.len() + 1 < FRAGMENTS && !rest.is_empty() {
        let wanted = 1 + dice.below(rest.len() as u64 / 2 + 1) as usize;
        let end = (wanted..rest.len()).find(|end| rest.is_char_boundary(*end));
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

struct StageTool {
    stage: Arc<Stage>,
    name: String,
}

impl Tool for StageTool {
    type Request = RawJson;

    fn spec(&self) -> ToolSpec {
        ToolSpec::new(&self.name, "A tool of the demo")
    }

    fn prepare(&self, input: &RawJson) -> Result<RawJson, ToolError> {
        Ok(input.clone())
    }

    async fn run(&self, input: RawJson, context: ToolCallContext) -> ToolOutput {
        let step = context.coordinates.step;
        let call = context.call_id.clone();
        let ledger = &self.stage.ledger;
        ledger.note(&Note::Working {
            step,
            call: call.clone(),
        });
        if self.stage.pauses(step).below(3) == 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let output = match self.stage.script.recorded {
            true => self.recorded(&context),
            false => ToolOutput::from(self.work(&input)),
        };
        let result = ToolResultMessage {
            is_error: output.is_error,
            ..ToolResultMessage::text(&call, &output.text)
        };
        ledger.note(&Note::Result {
            step,
            call,
            result: Digest::of(&Message::ToolResult(result)),
        });
        output
    }
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    path: String,
    #[serde(default)]
    content: String,
}

impl StageTool {
    /// Does it, in the scratch directory.
    fn work(&self, input: &RawJson) -> Result<String, String> {
        let told = |error: std::io::Error| error.to_string();
        let arguments: Arguments =
            serde_json::from_str(input.get()).map_err(|error| error.to_string())?;
        match self.name.as_str() {
            "list_files" => {
                let mut names = Vec::new();
                for folder in [self.stage.scratch.clone(), self.stage.scratch.join("notes")] {
                    for entry in std::fs::read_dir(folder).map_err(told)? {
                        names.push(entry.map_err(told)?.file_name().display().to_string());
                    }
                }
                names.sort();
                Ok(names.join("\n"))
            }
            "read_file" => std::fs::read_to_string(self.inside(&arguments.path)?).map_err(told),
            "write_file" => {
                let path = self.inside(&arguments.path)?;
                if let Some(folder) = path.parent() {
                    std::fs::create_dir_all(folder).map_err(told)?;
                }
                std::fs::write(path, &arguments.content).map_err(told)?;
                Ok(format!("wrote {} bytes", arguments.content.len()))
            }
            other => Err(format!("there is no tool {other}")),
        }
        .map(|text| {
            if text.is_empty() {
                NOTHING.to_owned()
            } else {
                text
            }
        })
    }

    /// A path inside the scratch directory.
    fn inside(&self, path: &str) -> Result<PathBuf, String> {
        let path = Path::new(path);
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        match path.components().all(plain) {
            true => Ok(self.stage.scratch.join(path)),
            false => Err("the path leaves the scratch directory".to_owned()),
        }
    }

    /// Gives what the transcript recorded for this call of the running step.
    fn recorded(&self, call: &ToolCallContext) -> ToolOutput {
        let running = self.stage.state().1;
        let place = running.filter(|(step, _)| *step == call.coordinates.step);
        let step = place.and_then(|(_, place)| self.stage.script.step(place));
        let mut results = step.into_iter().flat_map(|step| &step.results);
        let result = results.find(|result| result.tool_use_id == call.call_id);
        match result {
            Some(result) => {
                let text = result.to_text();
                ToolOutput {
                    text: if text.is_empty() {
                        NOTHING.to_owned()
                    } else {
                        text
                    },
                    is_error: result.is_error,
                }
            }
            None => ToolOutput::error("the transcript has no result for this call"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_text() {
        let mut dice = Dice::new(3);
        for text in ["", "a", "水水水", &"ab水".repeat(100)] {
            for _ in 0..50 {
                let pieces = pieces(text, &mut dice);
                assert_eq!(pieces.concat(), text);
                assert!(pieces.len() <= FRAGMENTS);
                assert!(pieces.iter().all(|piece| !piece.is_empty()));
            }
        }
    }
}
