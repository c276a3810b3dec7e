//! `cargo xtask dist`: builds all that a release publishes. Two builds of one commit give the same bytes.

use crate::process::on_path;
use crate::python;
use crate::runner::Done;
use crate::workspace::{Workspace, fresh};
use std::fs;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The greatest size of the file, in bytes.
const LARGEST: u64 = 18_000_000;

/// A static program cannot look for functions of the system's library, so the crate `getrandom` would read `/dev/urandom`.
const FLAGS: [&str; 4] =
    ["-C", "target-feature=+crt-static", "--cfg", "getrandom_backend=\"linux_getrandom\""];

/// The time that the build may take: 4 minutes on two free cores.
const LONGEST: Duration = Duration::from_secs(3_600);

/// The tests that run the file on a root without anything else.
const TESTS: [&str; 8] =
    ["test", "--package", "fencepost-cli", "--test", "cli", "--", "--ignored", "static_binary"];

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// All parts for the other processor type.
const CROSS: &str = "cross";

/// Names the compiler for it, if rustup has no standard library for that type and a distribution has.
const CROSS_RUSTC: &str = "CROSS_RUSTC";

/// The parts of a release, the programs that make them, and how to get these.
const PARTS: [(&str, &[(&str, &str)]); 7] = [
    ("binary", &[]),
    ("packages", &[("nfpm", "go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2")]),
    ("image", &[("buildah", "apt-get install buildah")]),
    ("wheel", &[("python3", "apt-get install python3")]),
    ("npm", &[("npm", "apt-get install npm")]),
    ("sbom", &[("cargo-cyclonedx", "cargo install --locked cargo-cyclonedx")]),
    (CROSS, &[]),
];

/// The names of one processor type.
struct Processor {
    /// Rust's, Python's and RPM's.
    name: &'static str,
    /// Debian's and that of images.
    debian: &'static str,
    node: &'static str,
}

const PROCESSORS: [Processor; 2] = [
    Processor { name: "x86_64", debian: "amd64", node: "x64" },
    Processor { name: "aarch64", debian: "arm64", node: "arm64" },
];

impl Processor {
    /// That of this machine, and the other one.
    fn both() -> Result<[&'static Processor; 2], String> {
        let [first, second] = &PROCESSORS;
        match std::env::consts::ARCH {
            here if here == first.name => Ok([first, second]),
            here if here == second.name => Ok([second, first]),
            here => Err(format!("there are no packages for {here}")),
        }
    }

    fn target(&self) -> String {
        format!("{}-unknown-linux-gnu", self.name)
    }

    /// The C compiler of another machine, which links as well.
    fn compiler(&self) -> String {
        format!("{}-linux-gnu-gcc", self.name)
    }

    /// Says what is missing to build for it on another machine.
    fn missing(&self, workspace: &Workspace) -> Result<Option<String>, String> {
        let (target, compiler, debian) = (self.target(), self.compiler(), self.debian);
        let rustc = std::env::var(CROSS_RUSTC).unwrap_or_else(|_| "rustc".to_owned());
        let ask = ["--print", "target-libdir", "--target", &target];
        let libraries = workspace.program("dist target", &rustc, &ask).run()?.text;
        let mut missing = Vec::new();
        if !libraries.lines().any(|folder| Path::new(folder.trim()).is_dir()) {
            missing.push(format!(
                "Rust's standard library (rustup target add {target}, or another compiler in {CROSS_RUSTC})"
            ));
        }
        if !on_path(&compiler) {
            let cpu = self.name.replace('_', "-");
            missing
                .push(format!("{compiler} (apt-get install gcc-{cpu}-linux-gnu libc6-dev-{debian}-cross)"));
        }
        Ok((!missing.is_empty()).then(|| missing.join(", ")))
    }
}

/// Returns the names of the parts.
pub(crate) fn parts() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(part, _)| *part)
}

/// Builds the file and returns its path.
fn build(workspace: &Workspace, processor: &Processor) -> Result<PathBuf, String> {
    let target = processor.target();
    // With a target, the flags are those of the program alone: a library that the compiler loads cannot be static.
    let arguments =
        ["build", "--profile", "dist", "--locked", "--package", "fencepost-cli", "--target", &target];
    let cargo = workspace.cargo("dist", &arguments).limit(LONGEST);
    // The folders of this machine do not belong to the bytes of a release.
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .map_err(|error| format!("HOME: {error}"))?;
    let places = [format!("{home}=/cargo"), format!("{}=/fencepost", workspace.root().display())];
    let remapped = places.each_ref().map(|place| format!("--remap-path-prefix={place}"));
    let flags: Vec<&str> = FLAGS.into_iter().chain(remapped.iter().map(String::as_str)).collect();
    let c_flags = places.each_ref().map(|place| format!("-ffile-prefix-map={place}"));
    let cargo = cargo.env("CARGO_ENCODED_RUSTFLAGS", &flags.join("\u{1f}")).env("CFLAGS", &c_flags.join(" "));
    if processor.name != std::env::consts::ARCH {
        let (name, compiler) = (target.replace('-', "_"), processor.compiler());
        let linker = format!("CARGO_TARGET_{}_LINKER", name.to_uppercase());
        let mut cargo = cargo.env(&linker, &compiler).env(&format!("CC_{name}"), &compiler);
        // A folder of its own: cargo takes another compiler's builds for stale ones.
        let folder = workspace.scratch(CROSS);
        cargo = cargo.env("CARGO_TARGET_DIR", &folder.to_string_lossy());
        if let Ok(rustc) = std::env::var(CROSS_RUSTC) {
            cargo = cargo.env("RUSTC", &rustc);
        }
        cargo.run()?;
        return Ok(folder.join(&target).join("dist/fencepost"));
    }
    cargo.run()?;
    let file = workspace.target().join("dist/fencepost");
    copy(&workspace.target().join(&target).join("dist/fencepost"), &file)?;
    Ok(file)
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> String {
    let shown = path.display().to_string();
    move |error| format!("{shown}: {error}")
}

/// Copies a file, and makes its folder.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    to.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed(to))?;
    fs::copy(from, to).map(drop).map_err(failed(from))
}

/// Writes a file, and makes its folder.
fn write(file: &Path, text: &str) -> Result<(), String> {
    file.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed(file))?;
    fs::write(file, text).map_err(failed(file))
}

/// Returns a file's size in megabytes, if it is not too large.
fn size(file: &Path) -> Result<String, String> {
    let bytes = fs::metadata(file).map_err(failed(file))?.len();
    if bytes > LARGEST {
        return Err(format!("{} has {bytes} bytes; at most {LARGEST} are allowed", file.display()));
    }
    Ok(format!("{:.1} MB", bytes as f64 / 1e6))
}

/// What all parts of a release share.
struct Release<'a> {
    workspace: &'a Workspace,
    processor: &'static Processor,
    binary: PathBuf,
    /// The same for this machine: it writes its manual and completions.
    native: PathBuf,
    /// The files that go into the parts.
    stage: PathBuf,
    /// The files that are published.
    out: PathBuf,
    /// The time of the commit, in seconds since 1970: the time of each file.
    epoch: u64,
}

/// Builds the parts that are named (all, if there are none) into `target/dist`, and signs their checksums by the key.
pub(crate) fn dist(workspace: &Workspace, only: &[String], sign_key: Option<&Path>) -> Result<bool, String> {
    if let Some(unknown) = only.iter().find(|part| !parts().any(|known| known == part.as_str())) {
        return Err(format!(
            "a release has no part `{unknown}`; there is: {}",
            parts().collect::<Vec<_>>().join(", ")
        ));
    }
    let wanted = |part: &str| only.is_empty() || only.iter().any(|only| only == part);
    let tools = PARTS.iter().filter(|(part, _)| wanted(part)).flat_map(|(_, tools)| *tools);
    let missing: Vec<_> = tools.filter(|(tool, _)| !on_path(tool)).map(|(_, how)| *how).collect();
    if !missing.is_empty() {
        return Err(format!(
            "programs are missing (`cargo xtask dist binary` needs none); install them by\n{}",
            missing.join("\n")
        ));
    }
    let [here, other] = Processor::both()?;
    let missing = if wanted(CROSS) { other.missing(workspace)? } else { None };
    if let Some(missing) = &missing {
        if !only.is_empty() {
            return Err(format!("{CROSS}: missing for {}: {missing}", other.name));
        }
        println!("{} is skipped, because something is missing: {missing}", other.name);
    }
    println!("building with optimisation …");
    let native = build(workspace, here)?;
    println!("{}: {}", native.display(), size(&native)?);
    if only != [CROSS] {
        let release = Release::new(workspace, here, native.clone(), native.clone())?;
        parts().filter(|part| wanted(part)).try_for_each(|part| release.part(part))?;
    }
    if wanted(CROSS) && missing.is_none() {
        let binary = build(workspace, other)?;
        println!("{}: {}", binary.display(), size(&binary)?);
        let release = Release::new(workspace, other, binary, native)?;
        parts().try_for_each(|part| release.part(part))?;
    }
    if only.is_empty() {
        checksums(workspace, sign_key)?;
    }
    Ok(true)
}

impl<'a> Release<'a> {
    fn new(
        workspace: &'a Workspace,
        processor: &'static Processor,
        binary: PathBuf,
        native: PathBuf,
    ) -> Result<Self, String> {
        let time = workspace.program("time of the commit", "git", &["log", "-1", "--format=%ct"]).run()?.text;
        let epoch = time.trim().parse().map_err(|error| format!("git log: {time}: {error}"))?;
        let out = folder(workspace);
        fs::create_dir_all(&out).map_err(failed(&out))?;
        let release = Release {
            workspace,
            processor,
            binary,
            native,
            stage: workspace.target().join("dist/stage"),
            out,
            epoch,
        };
        fresh(&release.stage)?;
        let name = format!("fencepost-{VERSION}-{}-linux", processor.name);
        copy(&release.binary, &release.out.join(name))?;
        Ok(release)
    }

    /// Makes a part. The file itself is there already.
    fn part(&self, part: &str) -> Result<(), String> {
        match part {
            "packages" => self.packages(),
            "image" => self.image(),
            "wheel" => self.wheel(),
            "npm" => self.npm(),
            "sbom" => self.sbom(),
            _ => Ok(()),
        }
    }

    /// A program that makes a part, in a folder of the staged files.
    fn run(&self, folder: &str, program: &str, arguments: &[&str]) -> Result<String, String> {
        let step = format!("dist {program} {}", arguments.first().unwrap_or(&""));
        let program = self.workspace.program_in(&self.stage.join(folder), &step, program, arguments);
        Ok(program.env("SOURCE_DATE_EPOCH", &self.epoch.to_string()).run()?.text)
    }

    /// Copies a folder of `deploy/`, with this release's version.
    fn staged(&self, from: &str, to: &str) -> Result<(), String> {
        for file in self.workspace.files()? {
            let Ok(inner) = file.strip_prefix(Path::new("deploy").join(from)) else { continue };
            let to = if inner.as_os_str().is_empty() {
                self.stage.join(to)
            } else {
                self.stage.join(to).join(inner)
            };
            let text = self.workspace.read(&file.to_string_lossy())?;
            let text = text.replace("VERSION", VERSION).replace("CPU", self.processor.node);
            write(&to, &text)?;
            let mode = fs::metadata(self.workspace.root().join(&file)).map_err(failed(&file))?.permissions();
            fs::set_permissions(&to, mode).map_err(failed(&to))?;
        }
        Ok(())
    }

    /// Gives each staged file and folder the time of the commit, and a mode that does not depend on the umask.
    fn normalised(&self, folder: &Path) -> Result<(), String> {
        for entry in fs::read_dir(folder).map_err(failed(folder))? {
            let path = entry.map_err(failed(folder))?.path();
            let is_program = fs::metadata(&path).map_err(failed(&path))?.permissions().mode() & 0o100 != 0;
            let mode = if is_program { 0o755 } else { 0o644 };
            fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed(&path))?;
            if path.is_dir() {
                self.normalised(&path)?;
            }
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(self.epoch);
            File::open(&path).and_then(|file| file.set_modified(time)).map_err(failed(&path))?;
        }
        Ok(())
    }

    /// The time of the commit as text; `format` is an option of `date`.
    fn date(&self, format: &str) -> Result<String, String> {
        let time = format!("@{}", self.epoch);
        let date = self.workspace.program("dist date", "date", &["--utc", format, "--date", &time]);
        Ok(date.env("LC_ALL", "C").run()?.text.trim().to_owned())
    }

    /// The Debian and the RPM package.
    fn packages(&self) -> Result<(), String> {
        self.staged("systemd", "packages/systemd")?;
        self.staged("packages", "packages/packages")?;
        let folder = self.stage.join("packages");
        copy(&self.binary, &folder.join("fencepost"))?;
        let binary = self.native.to_string_lossy();
        let help = self.run("packages", &binary, &["help"])?;
        let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let verbs =
            verbs.take_while(|line| line.starts_with(' ')).filter_map(|line| line.split_whitespace().next());
        for verb in [""].into_iter().chain(verbs.filter(|verb| *verb != "help")) {
            let (name, arguments) = match verb {
                "" => ("fencepost.1".to_owned(), vec!["man"]),
                verb => (format!("fencepost-{verb}.1"), vec!["man", verb]),
            };
            write(&folder.join("man").join(name), &self.run("packages", &binary, &arguments)?)?;
        }
        for (shell, file) in [("bash", "fencepost.bash"), ("fish", "fencepost.fish"), ("zsh", "_fencepost")] {
            let script = self.run("packages", &binary, &["completions", shell])?;
            write(&folder.join("completions").join(file), &script)?;
        }
        write(&folder.join("CHANGELOG.md"), &self.workspace.read("CHANGELOG.md")?)?;
        let date = self.date("--rfc-email")?;
        let changelog = format!(
            "fencepost ({VERSION}) unstable; urgency=medium\n\n  * The changes are in /usr/share/doc/fencepost/CHANGELOG.md.gz.\n\n \
             -- The fencepost authors <authors@fencepost.example>  {date}\n"
        );
        write(&folder.join("changelog"), &changelog)?;
        let copyright = self.workspace.read("deploy/packages/copyright")?;
        let licence = |file: &str| {
            Ok::<_, String>(self.workspace.read(file)?.replace("\n\n", "\n.\n").replace('\n', "\n "))
        };
        let copyright = format!(
            "{copyright}License: MIT\n {}\n\nLicense: Apache-2.0\n On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.\n",
            licence("LICENSE-MIT")?.trim_end()
        );
        write(&folder.join("copyright"), &copyright)?;
        self.run("packages", "sh", &["-c", "gzip -9n CHANGELOG.md changelog man/*"])?;
        let settings = self.workspace.read("deploy/packages/nfpm.yaml")?;
        let settings = settings.replace("${VERSION}", VERSION).replace("${ARCH}", self.processor.debian);
        write(&folder.join("nfpm.yaml"), &settings.replace("${DATE}", &self.date("--iso-8601=seconds")?))?;
        self.normalised(&folder)?;
        for kind in ["deb", "rpm"] {
            self.run(
                "packages",
                "nfpm",
                &["package", "--packager", kind, "--target", &self.out.to_string_lossy()],
            )?;
        }
        Ok(())
    }

    /// The image, as an archive of one file.
    fn image(&self) -> Result<(), String> {
        self.staged("image", "image")?;
        let folder = self.stage.join("image");
        let root = folder.join("root");
        copy(&self.binary, &root.join("usr/bin/fencepost"))?;
        let authorities = "etc/ssl/certs/ca-certificates.crt";
        copy(&Path::new("/").join(authorities), &root.join(authorities))?;
        self.normalised(&folder)?;
        for (name, mode) in [("state", 0o700), ("shared", 0o755)] {
            let empty = folder.join(name);
            fs::create_dir(&empty).map_err(failed(&empty))?;
            fs::set_permissions(&empty, Permissions::from_mode(mode)).map_err(failed(&empty))?;
        }
        let store = self.workspace.scratch("containers");
        let (store, epoch) = (store.to_string_lossy().into_owned(), self.epoch.to_string());
        let (layers, running) = (format!("{store}/root"), format!("{store}/run"));
        let place = ["--root", &layers, "--runroot", &running, "--storage-driver", "vfs"];
        // The name is in the archive, so that `podman load` gives it to the image.
        let name = format!("ghcr.io/fencepost/fencepost:{VERSION}");
        let platform = format!("linux/{}", self.processor.debian);
        let build = ["build", "--quiet", "--format", "oci", "--platform", &platform, "--timestamp", &epoch];
        let build = [&build[..], &["--tag", &name, "."]].concat();
        self.run("image", "buildah", &[&place[..], &build].concat())?;
        // The layout's files are put into an archive whose bytes depend on nothing else.
        let layout = format!("oci:layout:{name}");
        self.run("image", "buildah", &[&place[..], &["push", "--quiet", &name, &layout]].concat())?;
        let archive = self.out.join(format!("fencepost-{VERSION}-image-{}.tar", self.processor.debian));
        let (mtime, archive) = (format!("--mtime=@{epoch}"), archive.to_string_lossy().into_owned());
        let same =
            ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=a+rX,u+w,go-w", &mtime];
        self.run(
            "image",
            "tar",
            &[&same[..], &["--create", "--file", &archive, "--directory", "layout", "."]].concat(),
        )?;
        Ok(())
    }

    /// The wheel for pip.
    fn wheel(&self) -> Result<(), String> {
        let name = format!("fencepost_cli-{VERSION}");
        let info = format!("wheel/{name}.dist-info");
        self.staged("pip/METADATA", &format!("{info}/METADATA"))?;
        // A static file runs with each library of C.
        let tags = ["manylinux_2_17", "musllinux_1_1"]
            .map(|kind| format!("Tag: py3-none-{kind}_{}\n", self.processor.name));
        let text =
            format!("Wheel-Version: 1.0\nGenerator: fencepost\nRoot-Is-Purelib: false\n{}", tags.concat());
        write(&self.stage.join(info).join("WHEEL"), &text)?;
        let folder = self.stage.join("wheel");
        copy(&self.binary, &folder.join(format!("{name}.data/scripts/fencepost")))?;
        self.normalised(&folder)?;
        let out = self.out.to_string_lossy();
        let wheel = python::program(self.workspace, "wheel")?;
        self.run("", &wheel, &["pack", "--dest-dir", &out, "wheel"]).map(drop)
    }

    /// The packages for npm: one that everybody names, and one with the program.
    fn npm(&self) -> Result<(), String> {
        self.staged("npm/main", "npm/main")?;
        self.staged("npm/platform.json", "npm/platform/package.json")?;
        copy(&self.binary, &self.stage.join("npm/platform/bin/fencepost"))?;
        for package in ["npm/main", "npm/platform"] {
            self.staged("npm/README.md", &format!("{package}/README.md"))?;
            self.normalised(&self.stage.join(package))?;
            self.run(
                package,
                "npm",
                &["pack", "--offline", "--pack-destination", &self.out.to_string_lossy()],
            )?;
        }
        Ok(())
    }

    /// The list of the crates in the program.
    fn sbom(&self) -> Result<(), String> {
        let target = self.processor.target();
        let file = format!("fencepost-{VERSION}-{}.cdx", self.processor.name);
        let arguments = [
            "cyclonedx",
            "--manifest-path",
            "crates/fencepost-cli/Cargo.toml",
            "--format",
            "json",
            "--target",
            &target,
            "--override-filename",
            &file,
        ];
        let cargo = self.workspace.cargo("dist cyclonedx", &arguments);
        cargo.env("SOURCE_DATE_EPOCH", &self.epoch.to_string()).run()?;
        // One is written beside the manifest of each crate of the workspace.
        let crates = self.workspace.root().join("crates");
        let wanted = crates.join("fencepost-cli").join(format!("{file}.json"));
        let text = fs::read_to_string(&wanted).map_err(failed(&wanted))?;
        // The folder of this machine does not belong to the bytes of a release.
        let root = format!("file://{}/", self.workspace.root().display());
        write(&self.out.join(format!("{file}.json")), &text.replace(&root, "file:///fencepost/"))?;
        for folder in fs::read_dir(&crates).map_err(failed(&crates))? {
            let _ = fs::remove_file(folder.map_err(failed(&crates))?.path().join(format!("{file}.json")));
        }
        for other in ["benches", "xtask"] {
            let _ = fs::remove_file(self.workspace.root().join(other).join(format!("{file}.json")));
        }
        Ok(())
    }
}

/// Where the files are that are published.
fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target().join("dist/release")
}

/// The checksums of all files, and their signature.
fn checksums(workspace: &Workspace, sign_key: Option<&Path>) -> Result<(), String> {
    let out = folder(workspace);
    let in_out = |step: &str, program: &str, arguments: &[&str]| {
        workspace.program_in(&out, step, program, arguments).run()
    };
    let _ = fs::remove_file(out.join("SHA256SUMS"));
    let _ = fs::remove_file(out.join("SHA256SUMS.sig"));
    let sums = in_out("dist sums", "sh", &["-c", "LC_ALL=C sha256sum -- *"])?.text;
    write(&out.join("SHA256SUMS"), &sums)?;
    if let Some(key) = sign_key {
        let key = key.to_string_lossy();
        in_out("dist sign", "ssh-keygen", &["-Y", "sign", "-f", &key, "-n", "fencepost", "SHA256SUMS"])?;
    }
    println!("{}:\n{sums}", out.display());
    Ok(())
}

/// Builds the file, and runs it on a root that has nothing else.
pub(crate) fn check(workspace: &Workspace) -> Result<Done, String> {
    let [here, _] = Processor::both()?;
    let file = build(workspace, here)?;
    let size = size(&file)?;
    let space = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "true"];
    if workspace.program("static binary", "unshare", &space).run().is_err() {
        let why = "this user cannot make namespaces, or `unshare` is missing";
        return Ok(Done::Skipped(format!("{size}, did not run: {why}")));
    }
    let tests = workspace.cargo("static binary", &TESTS).env("FENCEPOST_STATIC", &file.to_string_lossy());
    let text = tests.run()?.text;
    if text.contains("test result: ok. 0 passed") {
        return Err("no test of the static binary ran".to_owned());
    }
    Ok(Done::Passed(size))
}
