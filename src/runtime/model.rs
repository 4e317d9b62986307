//! The model that a host brings.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::ToolSpec;
use crate::contain::{Held, Panicked, contained};
use crate::content::{Message, Usage};
use crate::event::Chunk;
use crate::identity::Coordinates;

/// A model: answers with a stream of fragments.
///
/// The stream's end is the end of the answer (of a channel: [`ModelSender::finish`]). An error, a
/// panic or a cancellation discards the whole step, also the text that had already come: only whole
/// answers are stored.
pub trait Model: Send + Sync {
    /// Begins an answer. Must not block: connect inside the stream.
    fn stream(&self, request: ModelRequest) -> ModelStream;
}

impl<F: Fn(ModelRequest) -> ModelStream + Send + Sync> Model for F {
    fn stream(&self, request: ModelRequest) -> ModelStream {
        self(request)
    }
}

impl Model for Arc<dyn Model> {
    fn stream(&self, request: ModelRequest) -> ModelStream {
        (**self).stream(request)
    }
}

/// What a model is asked.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelRequest {
    /// The committed context of the loop, oldest first; shared and never changed.
    pub messages: Vec<Arc<Message>>,
    /// The tools it may call.
    pub tools: Arc<[ToolSpec]>,
    /// The session, loop, turn and step that the answer is for.
    pub coordinates: Coordinates,
    /// The turn's number within its loop, from 1.
    pub turn_index: u64,
    /// The step's number within its turn, from 0.
    pub step_index: u32,
    /// Cancelled when the answer is no longer wanted. The stream is dropped then anyway; this is for
    /// work that goes on beside it.
    pub cancel: CancellationToken,
}

impl ModelRequest {
    /// A request with these messages and nothing else, for testing a model by itself.
    pub fn new(messages: Vec<Arc<Message>>) -> ModelRequest {
        ModelRequest {
            messages,
            tools: Arc::from([]),
            coordinates: Coordinates::default(),
            turn_index: 1,
            step_index: 0,
            cancel: CancellationToken::new(),
        }
    }
}

/// One item of a model's answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ModelEvent {
    /// A fragment.
    Chunk(Chunk),
    /// What the answer cost. The last one counts, and only when the answer ends well.
    Usage(Usage),
}

impl ModelEvent {
    /// A fragment of the text block at an index.
    pub fn text(index: u32, text: impl Into<String>) -> ModelEvent {
        let text = text.into();
        ModelEvent::Chunk(Chunk::Text { index, text })
    }

    /// A whole tool call as two fragments; the input need not be JSON.
    pub fn tool_call(
        index: u32,
        id: impl Into<String>,
        name: impl Into<String>,
        input: impl Into<Vec<u8>>,
    ) -> [ModelEvent; 2] {
        let (id, name, fragment) = (id.into(), name.into(), input.into());
        [
            ModelEvent::Chunk(Chunk::ToolUse { index, id, name }),
            ModelEvent::Chunk(Chunk::ToolInput { index, fragment }),
        ]
    }
}

impl std::convert::From<Chunk> for ModelEvent {
    fn from(chunk: Chunk) -> Self {
        ModelEvent::Chunk(chunk)
    }
}

/// Why an answer broke off, in the provider's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the model failed: {message}")]
pub struct ModelError {
    /// For people; recorded in TurnFailed.
    pub message: String,
}

impl ModelError {
    /// An error with its text.
    pub fn new(message: impl Into<String>) -> ModelError {
        let message = message.into();
        ModelError { message }
    }
}

type Item = Result<ModelEvent, ModelError>;
type Boxed = Pin<Box<dyn Stream<Item = Item> + Send>>;

/// A model's answer as it comes.
pub struct ModelStream(Boxed);

impl ModelStream {
    /// From any stream.
    pub fn new(
        stream: impl Stream<Item = Result<ModelEvent, ModelError>> + Send + 'static,
    ) -> ModelStream {
        ModelStream(Box::pin(stream))
    }

    /// An answer that is there already, as a script or a cache has it.
    pub fn ready<I>(items: I) -> ModelStream
    where
        I: IntoIterator<Item = Result<ModelEvent, ModelError>>,
        I::IntoIter: Send + 'static,
    {
        ModelStream::new(Items(Box::new(items.into_iter())))
    }

    /// A channel: the answer is what is sent, and ends with [`ModelSender::finish`]. If the sender
    /// is dropped without it (its task returned early or panicked), the answer broke off: it ends
    /// with an error and nothing of it is stored. Sending waits while `capacity` items (at least 1)
    /// are unread.
    pub fn channel(capacity: usize) -> (ModelSender, ModelStream) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        let stream = Received {
            receiver,
            ended: false,
        };
        (ModelSender(sender), ModelStream::new(stream))
    }
}

/// A model's answer as the runner reads it. Each poll is contained by itself; after its end or a
/// panic the stream is dropped at once, by itself.
pub(super) struct Answering(Option<Held<ModelStream>>);

impl Answering {
    pub(super) fn new(stream: Option<ModelStream>) -> Answering {
        Answering(stream.map(Held::new))
    }

    pub(super) async fn next(&mut self) -> Result<Option<Item>, Panicked> {
        let item = poll_fn(|context| {
            let Some(stream) = self.0.as_mut().and_then(Held::get_mut) else {
                return Poll::Ready(Ok(None));
            };
            match contained(|| stream.0.as_mut().poll_next(context)) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(item)) => Poll::Ready(Ok(item)),
                Err(panicked) => Poll::Ready(Err(panicked)),
            }
        })
        .await;
        if !matches!(item, Ok(Some(_))) {
            self.0 = None;
        }
        item
    }
}

impl std::fmt::Debug for ModelStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ModelStream")
    }
}

impl Stream for ModelStream {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

struct Items(Box<dyn Iterator<Item = Result<ModelEvent, ModelError>> + Send>);

impl Stream for Items {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next())
    }
}

struct Received {
    receiver: mpsc::Receiver<Sent>,
    ended: bool,
}

#[derive(Debug)]
enum Sent {
    Item(Result<ModelEvent, ModelError>),
    Finished,
}

impl Stream for Received {
    type Item = Result<ModelEvent, ModelError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        self.receiver.poll_recv(context).map(|sent| match sent {
            Some(Sent::Item(item)) => Some(item),
            Some(Sent::Finished) => {
                self.ended = true;
                None
            }
            None => {
                self.ended = true;
                Some(Err(ModelError::new(
                    "the answer broke off: its sender was dropped before it was finished",
                )))
            }
        })
    }
}

/// The sending side of [`ModelStream::channel`].
#[derive(Debug, Clone)]
#[must_use = "an answer whose sender is dropped without `finish` is discarded"]
pub struct ModelSender(mpsc::Sender<Sent>);

impl ModelSender {
    /// Sends one item; waits for room. False when the answer is no longer wanted.
    pub async fn send(&self, item: Result<ModelEvent, ModelError>) -> bool {
        self.0.send(Sent::Item(item)).await.is_ok()
    }

    /// Ends the answer well. False when it is no longer wanted.
    pub async fn finish(self) -> bool {
        self.0.send(Sent::Finished).await.is_ok()
    }

    /// Waits until the answer is no longer wanted.
    pub async fn closed(&self) {
        self.0.closed().await;
    }
}
