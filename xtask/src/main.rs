//! The commands of the project: `cargo xtask test`, `cargo xtask bench`, `cargo xtask prove`, `cargo xtask dist`, `cargo xtask docs`.
//!
//! They need nothing but Rust and the package registry; where a test needs a program of the operating system,
//! [`packages`] installs it and says so.

mod bench;
mod book;
mod dist;
mod drivers;
mod features;
mod layout;
mod manifests;
mod modules;
mod mutants;
mod packages;
mod peers;
mod process;
mod prove;
mod python;
mod readme;
mod runner;
mod rustdoc;
mod scripts;
mod test;
mod test_programs;
mod tree;
mod versions;
mod workspace;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use test::Extent;
use workspace::Workspace;

/// Test, bench, prove and build fencepost.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must hold before a change is merged; ends with `N passed, N failed`
    Test {
        /// Run only the steps whose name contains one of these words. `quick`: format, lint, and the tests of core, memory
        /// and SQLite
        #[arg(value_name = "STEP")]
        only: Vec<String>,
        /// Install the Debian packages that the tests need, as root with apt-get
        #[arg(long)]
        install: bool,
        /// Run the checks of other builds as well: licences, single features, the oldest Rust, macOS, what other systems
        /// have, the static file
        #[arg(long)]
        all: bool,
        /// Print the names of the steps and stop
        #[arg(long)]
        list: bool,
    },
    /// Measure each engine beside its bare driver and its peers; writes docs/benchmarks.md
    Bench {
        /// Engines to measure: memory, sqlite, redis, zookeeper, etcd, postgres, mysql; `peers`: the handoffs of other libraries
        /// beside ours, warm (default: all)
        #[arg(value_name = "ENGINE")]
        engines: Vec<String>,
        /// Print the tables without writing docs/benchmarks.md
        #[arg(long)]
        dry: bool,
    },
    /// Check every point of the bar that is too long for `test`; writes docs/proof.md. `prove versions [WORD…]`: fetch other versions of
    /// the servers whose package or name contains a word (all, without one), run the tests on them, and write their tables in
    /// docs/backends
    Prove {
        #[arg(value_name = "ENGINE", help = format!("Engines to prove: {} (default: all)", prove::engines().join(", ")))]
        engines: Vec<String>,
        /// Run only the lines whose id contains one of these words, and leave docs/proof.md alone
        #[arg(long, value_name = "ID")]
        only: Vec<String>,
        /// With --only: write the rows of these lines all the same; the others stay as they are
        #[arg(long, requires = "only")]
        write: bool,
    },
    /// Build all that a release publishes, in target/dist/release; `dist binary`: only the command as one static, stripped file,
    /// target/dist/fencepost. The other processor type (`dist cross`) is skipped if its standard library or linker is missing
    Dist {
        #[arg(value_name = "PART", help = format!("Parts to build: {} (default: all)", dist::parts().collect::<Vec<_>>().join(", ")))]
        parts: Vec<String>,
        /// Sign the checksums by this SSH key (`ssh-keygen -Y`)
        #[arg(long, value_name = "FILE", conflicts_with = "parts")]
        sign_key: Option<PathBuf>,
    },
    /// Build the pages as a book with mdBook, target/xtask/book/book/index.html
    Docs,
}

fn main() -> ExitCode {
    if let Some(code) = rustdoc::in_place_of_rustdoc() {
        return code;
    }
    process::stop_children_on_signals();
    let outcome = match Arguments::parse().command {
        Command::Test { only, install, all, list } => test::test(&only, Extent { install, all, list }),
        Command::Bench { engines, dry } => bench::bench(&engines, dry),
        Command::Prove { engines, .. } if engines.first().is_some_and(|first| first == "versions") => {
            versions::versions(&engines[1..])
        }
        Command::Prove { engines, only, write } => prove::prove(&engines, &only, write),
        Command::Dist { parts, sign_key } => dist::dist(&Workspace::find(), &parts, sign_key.as_deref()),
        Command::Docs => book::docs(&Workspace::find()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
