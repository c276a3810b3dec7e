//! The arguments of the attribute.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitStr, Result, Token};

/// The name of the lock and the options.
pub(crate) struct Options {
    pub(crate) name: LitStr,
    /// The values for `{}` in the name.
    pub(crate) values: Vec<Expr>,
    pub(crate) kind: Kind,
    /// The calls on the request: `.wait(…)`, for example.
    pub(crate) calls: Vec<TokenStream>,
    pub(crate) on_busy: Option<Expr>,
    pub(crate) locks: Option<Expr>,
    pub(crate) view: Option<Ident>,
}

/// The kind of lock.
pub(crate) enum Kind {
    Mutex,
    Read,
    Write,
    /// One of this many permits.
    Permits(Expr),
}

/// One argument behind the name.
enum Argument {
    Value(Expr),
    Option(Ident, Expr),
}

impl Parse for Argument {
    fn parse(input: ParseStream<'_>) -> Result<Argument> {
        if input.peek(Ident) && input.peek2(Token![=]) && !input.peek2(Token![==]) {
            let option = input.parse()?;
            input.parse::<Token![=]>()?;
            return Ok(Argument::Option(option, input.parse()?));
        }
        input.parse().map(Argument::Value)
    }
}

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Options> {
        let rule = "the first argument is the lock's name, a text such as \"order:{id}\"";
        let name: LitStr = input.parse().map_err(|error| Error::new(error.span(), rule))?;
        if name.value().is_empty() {
            return Err(Error::new(name.span(), "a lock's name has at least one character"));
        }
        let mut options = Options {
            name,
            values: Vec::new(),
            kind: Kind::Mutex,
            calls: Vec::new(),
            on_busy: None,
            locks: None,
            view: None,
        };
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
        let mut seen: Vec<Ident> = Vec::new();
        for argument in Punctuated::<Argument, Token![,]>::parse_terminated(input)? {
            match argument {
                Argument::Option(option, value) => {
                    if seen.contains(&option) {
                        return Err(Error::new(option.span(), format!("`{option}` is given twice")));
                    }
                    let kinds = ["mode", "permits"];
                    if kinds.iter().all(|kind| option == kind || seen.iter().any(|seen| seen == kind)) {
                        return Err(Error::new(option.span(), "give `mode` or `permits`, not both"));
                    }
                    options.set(&option, value)?;
                    seen.push(option);
                }
                Argument::Value(value) if seen.is_empty() => options.values.push(value),
                Argument::Value(value) => {
                    let rule = "a value for the name stands behind the name, before the options";
                    return Err(Error::new(value.span(), rule));
                }
            }
        }
        check_braces(&options.name, &options.values)?;
        Ok(options)
    }
}

/// Refuses expressions in the braces of the name, which `format!` does not take, with a message that says what to write.
fn check_braces(name: &LitStr, values: &[Expr]) -> Result<()> {
    let text = name.value();
    let mut values = values.iter().map(|value| quote!(#value).to_string());
    let (mut rest, mut written, mut behind, mut wrong) = (&*text, String::new(), Vec::new(), false);
    while let Some(at) = rest.find('{') {
        let (before, braces) = rest.split_at(at);
        written.push_str(before);
        if let Some(after) = braces.strip_prefix("{{") {
            written.push_str("{{");
            rest = after;
            continue;
        }
        let Some((inner, after)) = braces[1..].split_once('}') else { return Ok(()) };
        let (argument, form) = inner.split_once(':').map_or((inner, ""), |(argument, form)| (argument, form));
        let is_name = argument.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
        wrong |= !is_name;
        if argument.is_empty() {
            behind.extend(values.next());
        } else {
            behind.push(argument.to_owned());
        }
        let colon = if form.is_empty() { "" } else { ":" };
        written.push_str(&format!("{{{colon}{form}}}"));
        rest = after;
    }
    if !wrong {
        return Ok(());
    }
    written.push_str(rest);
    let message = format!(
        "braces take the name of an argument alone; write #[locked({written:?}, {})], with the options behind that",
        behind.join(", ")
    );
    Err(Error::new(name.span(), message))
}

impl Options {
    fn set(&mut self, option: &Ident, value: Expr) -> Result<()> {
        match option.to_string().as_str() {
            "wait" | "ttl" | "max_hold" | "at_least" => {
                let value = duration(value)?;
                self.calls.push(quote!(.#option(#value)));
            }
            "reason" => self.calls.push(quote!(.reason(#value))),
            "evict_overdue" | "unfair" => match &value {
                Expr::Lit(ExprLit { lit: Lit::Bool(yes), .. }) => {
                    self.calls.extend(yes.value.then(|| quote!(.#option())));
                }
                other => return Err(Error::new(other.span(), format!("`{option}` is true or false"))),
            },
            "mode" => {
                self.kind = match &value {
                    Expr::Path(path) if path.path.is_ident("read") => Kind::Read,
                    Expr::Path(path) if path.path.is_ident("write") => Kind::Write,
                    other => return Err(Error::new(other.span(), "`mode` is read or write")),
                }
            }
            "permits" => self.kind = Kind::Permits(value),
            "on_busy" => self.on_busy = Some(value),
            "locks" => self.locks = Some(value),
            "view" => match &value {
                Expr::Path(path) if path.path.get_ident().is_some() => {
                    self.view = path.path.get_ident().cloned();
                }
                other => return Err(Error::new(other.span(), "`view` is a name for the body's use")),
            },
            other => {
                let message = format!(
                    "there is no option `{other}`; the options are wait, on_busy, mode, permits, ttl, max_hold, at_least, \
                     evict_overdue, unfair, reason, locks and view"
                );
                return Err(Error::new(option.span(), message));
            }
        }
        Ok(())
    }
}

/// The units of a duration, in milliseconds. `ms` comes before `s` and `m`.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// A text such as `3s`, or an expression that is a `Duration`.
fn duration(value: Expr) -> Result<TokenStream> {
    let Expr::Lit(ExprLit { lit, .. }) = &value else { return Ok(quote!(#value)) };
    let wrong = || {
        Error::new(
            lit.span(),
            "a duration is a number and its unit, such as \"500ms\", \"3s\", \"2m\" or \"1h\"",
        )
    };
    let Lit::Str(text) = lit else { return Err(wrong()) };
    let text = text.value();
    let parse =
        |(unit, length): &(&str, u64)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*length);
    let milliseconds = UNITS.iter().find_map(parse).ok_or_else(wrong)?;
    Ok(quote!(::core::time::Duration::from_millis(#milliseconds)))
}
