//! Text for people: tables as wide as the terminal, colour only where wanted, a closed pipe is not an error.

use anstyle::Style;
use comfy_table::{ContentArrangement, Table, presets};
use std::io::{self, Write};

/// A table without lines, arranged to the terminal's width; whole lines where the output is not a terminal.
pub fn table(header: &[&str]) -> Table {
    let mut t = Table::new();
    t.load_preset(presets::NOTHING);
    t.set_content_arrangement(ContentArrangement::Dynamic);
    if !io::IsTerminal::is_terminal(&io::stdout()) {
        t.set_content_arrangement(ContentArrangement::Disabled);
    }
    t.set_header(header.iter().map(|h| h.to_uppercase()));
    t
}

/// Prints to standard output; honours `NO_COLOR` and `CLICOLOR` (anstream); a reader that went away is not an error.
pub fn out(text: &str) -> anyhow::Result<()> {
    let mut o = anstream::stdout().lock();
    match o.write_all(text.as_bytes()).and_then(|()| o.write_all(b"\n")).and_then(|()| o.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        r => Ok(r?),
    }
}

/// Prints words to standard error, with colour where that is a terminal.
pub fn err(text: &str) -> anyhow::Result<()> {
    let mut e = anstream::stderr().lock();
    match e.write_all(text.as_bytes()).and_then(|()| e.write_all(b"\n")).and_then(|()| e.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        r => Ok(r?),
    }
}

/// `text` in `style`.
pub fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Good news.
pub const GOOD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(anstyle::AnsiColor::Green)));
/// Something to look at.
pub const WARN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(anstyle::AnsiColor::Yellow)));
/// Something wrong.
pub const BAD: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(anstyle::AnsiColor::Red))).bold();
/// Headings.
pub const HEAD: Style = Style::new().bold();
