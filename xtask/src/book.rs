//! `cargo xtask docs`: builds the pages as a book with mdBook.

use crate::process::on_path;
use crate::workspace::{Workspace, fresh};
use std::fs;
use std::path::Path;

const VERSION: &str = "0.5.4";

const SETTINGS: &str =
    "[book]\ntitle = \"fencepost\"\nlanguage = \"en\"\n\n[output.html]\nno-section-label = true\n";

/// The address of a file that is no page of the book.
const REPOSITORY: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// Builds the book and says where it is.
pub(crate) fn docs(workspace: &Workspace) -> Result<bool, String> {
    if !on_path("mdbook") {
        return Err(format!(
            "mdbook is missing; first run `cargo install mdbook --version {VERSION} --locked`"
        ));
    }
    let folder = workspace.scratch("book");
    fresh(&folder)?;
    let (source, list) = (folder.join("src"), read(workspace, Path::new("docs/SUMMARY.md"))?);
    // mdBook wants the list of pages beside the first one, which is README.
    let list = list.replace("](", "](docs/").replace("](docs/../", "](");
    write(&source.join("SUMMARY.md"), &list)?;
    for file in workspace.files()? {
        let shown = file.to_string_lossy();
        if list.contains(&format!("]({shown})")) {
            write(&source.join(&file), &relinked(&read(workspace, &file)?, &file, &list))?;
        } else if file.starts_with("docs") && is_picture(&shown) {
            copy(&workspace.root().join(&file), &source.join(&file))?;
        }
    }
    write(&folder.join("book.toml"), SETTINGS)?;
    let place = folder.to_string_lossy();
    workspace.program("book", "mdbook", &["build", &place]).run()?;
    println!("{}", folder.join("book/index.html").display());
    Ok(true)
}

/// The page with links that lead to the right place in the book. mdBook calls the page of README `index`.
fn relinked(page: &str, file: &Path, list: &str) -> String {
    let mut parts = page.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find([')', '#']).unwrap_or(part.len());
        let (link, rest) = part.split_at(end);
        let target = resolve(file, link);
        text.push_str("](");
        if link.is_empty() || link.contains("://") || link.contains(char::is_whitespace) || is_picture(link) {
            text.push_str(link);
        } else if list.contains(&format!("]({target})")) {
            text.push_str(&link.replace("README.md", "index.md"));
        } else {
            text.push_str(&format!("{REPOSITORY}{target}"));
        }
        text.push_str(rest);
    }
    text
}

/// The path of a link from the root.
fn resolve(file: &Path, link: &str) -> String {
    let mut path = file.parent().map(Path::to_path_buf).unwrap_or_default();
    for part in link.split('/') {
        match part {
            ".." => drop(path.pop()),
            "." => {}
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}

fn read(workspace: &Workspace, file: &Path) -> Result<String, String> {
    fs::read_to_string(workspace.root().join(file)).map_err(|error| format!("{}: {error}", file.display()))
}

fn is_picture(path: &str) -> bool {
    path.ends_with(".svg") || path.ends_with(".png")
}

fn copy(file: &Path, to: &Path) -> Result<(), String> {
    let made = to.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::copy(file, to)).map(drop).map_err(|error| format!("{}: {error}", to.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let made = file.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(file, text)).map_err(|error| format!("{}: {error}", file.display()))
}
