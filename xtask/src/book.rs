//! `cargo xtask docs`: builds the pages as a book with mdBook.

use crate::process::on_path;
use crate::workspace::{Workspace, fresh};
use std::fs;
use std::path::Path;

const VERSION: &str = "0.5.4";

const SETTINGS: &str =
    "[book]\ntitle = \"fencepost\"\nlanguage = \"en\"\n\n[output.html]\nno-section-label = true\n";

/// Builds the book and says where it is.
pub(crate) fn docs(workspace: &Workspace) -> Result<bool, String> {
    if !on_path("mdbook") {
        return Err(format!(
            "mdbook is missing; first run `cargo install mdbook --version {VERSION} --locked`"
        ));
    }
    let folder = workspace.scratch("book");
    fresh(&folder)?;
    let source = folder.join("src");
    for file in workspace.files()? {
        let is_page = file.parent() == Some(Path::new("")) || file.starts_with("docs");
        if is_page && file.extension().is_some_and(|kind| kind == "md" || kind == "svg") {
            copy(workspace, &file, &source.join(&file))?;
        }
    }
    // mdBook wants the list of pages beside the first one, which is README.
    let list = workspace.root().join("docs/SUMMARY.md");
    let list = fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let list = list.replace("](", "](docs/").replace("](docs/../", "](");
    write(&source.join("SUMMARY.md"), &list)?;
    write(&folder.join("book.toml"), SETTINGS)?;
    let place = folder.to_string_lossy();
    workspace.program("book", "mdbook", &["build", &place]).run()?;
    println!("{}", folder.join("book/index.html").display());
    Ok(true)
}

fn copy(workspace: &Workspace, file: &Path, to: &Path) -> Result<(), String> {
    let made = to.parent().map_or(Ok(()), fs::create_dir_all);
    let copied = made.and_then(|()| fs::copy(workspace.root().join(file), to));
    copied.map(drop).map_err(|error| format!("{}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}
