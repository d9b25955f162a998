//! Text in pieces, each of which says what it is.

use std::fmt::{self, Display};

/// What a piece of text is; the page shows it, the terminal does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Nothing in particular.
    Plain,
    /// What matters most, such as a name.
    Strong,
    /// A piece of code.
    Code,
    /// A remark.
    Dim,
    /// As it should be.
    Good,
    /// Not as it should be.
    Bad,
}

/// A piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The words.
    pub text: String,
    /// What they are.
    pub style: Style,
}

/// Text, piece by piece.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub Vec<Span>);

impl Text {
    /// One piece.
    pub fn of(style: Style, text: impl Display) -> Self {
        Text::default().then(style, text)
    }

    /// With another piece at its end.
    pub fn then(mut self, style: Style, text: impl Display) -> Self {
        let text = text.to_string();
        self.0.push(Span { text, style });
        self
    }

    /// Columns that it takes on a terminal.
    pub(crate) fn width(&self) -> usize {
        self.0.iter().map(|span| span.text.chars().count()).sum()
    }
}

impl Display for Text {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|span| out.write_str(&span.text))
    }
}

/// From what is text without any style.
macro_rules! plain {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Text {
            fn from(text: $kind) -> Self {
                Text::of(Style::Plain, text)
            }
        })*
    };
}

plain!(&str, String, u32, u64, usize, i32);
