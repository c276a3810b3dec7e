//! `cargo xtask docs`: builds the pages as a book with mdBook.

use crate::process::on_path;
use crate::workspace::{Workspace, fresh};
use regex::{Captures, Regex};
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
    let (source, list) = (folder.join("src"), workspace.read("docs/SUMMARY.md")?);
    // mdBook wants the list of pages beside the first one, which is README.
    let list = list.replace("](", "](docs/").replace("](docs/../", "](");
    write(&source.join("SUMMARY.md"), &list)?;
    for file in workspace.files()? {
        let shown = file.to_string_lossy();
        if list.contains(&format!("]({shown})")) {
            write(&source.join(&file), &relinked(&workspace.read(&shown)?, &file, &list)?)?;
        } else if file.starts_with("docs") && is_picture(&shown) {
            let picture =
                fs::read(workspace.root().join(&file)).map_err(|error| format!("{shown}: {error}"))?;
            write(&source.join(&file), &picture)?;
        }
    }
    write(&folder.join("book.toml"), SETTINGS)?;
    let place = folder.to_string_lossy();
    workspace.program("book", "mdbook", &["build", &place]).run()?;
    println!("{}", folder.join("book/index.html").display());
    Ok(true)
}

/// The page with links that lead to the right place in the book. mdBook calls the page of README `index`.
fn relinked(page: &str, file: &Path, list: &str) -> Result<String, String> {
    let link = Regex::new(r"\]\(([^)#:\s]+)([)#])").map_err(|error| error.to_string())?;
    let text = link.replace_all(page, |found: &Captures| {
        let target = resolve(file, &found[1]);
        if is_picture(&found[1]) {
            found[0].to_owned()
        } else if list.contains(&format!("]({target})")) {
            found[0].replace("README.md", "index.md")
        } else {
            format!("]({REPOSITORY}{target}{}", &found[2])
        }
    });
    Ok(text.into_owned())
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

fn is_picture(path: &str) -> bool {
    path.ends_with(".svg") || path.ends_with(".png")
}

fn write(file: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    let made = file.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(file, text)).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_right_place() {
        let page =
            "[a](../README.md#x) [b](b.md) [c](../Cargo.toml) [d](https://e.org/f.md) [g](h.svg) [i](#j)";
        let expected = format!(
            "[a](../index.md#x) [b](b.md) [c]({REPOSITORY}Cargo.toml) [d](https://e.org/f.md) [g](h.svg) [i](#j)"
        );
        let found = relinked(page, Path::new("docs/a.md"), "[A](README.md) [B](docs/b.md)");
        assert_eq!(found, Ok(expected));
    }
}
