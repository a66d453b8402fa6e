//! Sending files of runs: a whole file or a part, and never a file outside of the run's folder.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;

use crate::problem::{Answer, Problem, internal};

/// The number of bytes of a file that are read at once.
const PIECE: usize = 64 * 1024;

/// Opens the file that a name means in a folder: below the folder, and not through a link. Any other name is not
/// found.
pub(crate) fn open_below(folder: &Path, name: &str) -> Answer<File> {
    let none = || Problem::not_found(format!("there is no file {name:?}"));
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if name.contains(['\0', '\\']) || name.split('/').any(odd) {
        return Err(none());
    }
    sprag_process::open_below(folder, Path::new(name)).map_err(|_| none())
}

/// The requested part of a file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    /// The first byte; the file's start if absent.
    pub(crate) offset: Option<u64>,
    /// The most bytes; the rest of the file if absent.
    pub(crate) limit: Option<u64>,
}

/// Sends a file, or the requested part of it, and reads it piece by piece as the client takes it.
pub(crate) fn send(mut file: File, kind: &'static str, headers: &HeaderMap, part: Part) -> Answer<Response> {
    let failed = |error: std::io::Error| internal(format!("reading a file: {error}"));
    let length = file.metadata().map_err(failed)?.len();
    let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let (first, end, partial) = match range.and_then(parse_range) {
        Some((first, last)) => {
            let (first, end) = match (first, last) {
                (Some(first), last) => {
                    (first, last.map_or(length, |last| last.saturating_add(1).min(length)))
                }
                (None, last) => (length.saturating_sub(last.unwrap_or(0)), length),
            };
            if first >= length || first >= end {
                return Err(unsatisfiable(length));
            }
            (first, end, true)
        }
        // A range that cannot be understood is ignored, as the protocol requires.
        None => {
            let first = part.offset.unwrap_or(0).min(length);
            let end = part.limit.map_or(length, |limit| first.saturating_add(limit).min(length));
            (first, end, false)
        }
    };
    file.seek(SeekFrom::Start(first)).map_err(failed)?;
    let mut response = Body::from_stream(pieces(file, end - first)).into_response();
    if partial {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let out = response.headers_mut();
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    out.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    out.insert(header::CONTENT_LENGTH, HeaderValue::from(end - first));
    out.insert("x-file-size", HeaderValue::from(length));
    if partial && let Ok(range) = HeaderValue::from_str(&format!("bytes {first}-{}/{length}", end - 1)) {
        out.insert(header::CONTENT_RANGE, range);
    }
    Ok(response)
}

fn unsatisfiable(length: u64) -> Problem {
    let message = format!("the file has {length} bytes");
    Problem::new(StatusCode::RANGE_NOT_SATISFIABLE, "range", message).next("ask for a part that it has")
}

/// Parses one range of bytes: `bytes=5-`, `bytes=5-9` or `bytes=-5`.
fn parse_range(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| match text {
        "" => Some(None),
        digits => digits.parse::<u64>().ok().map(Some),
    };
    match (number(first)?, number(last)?) {
        (None, None) => None,
        (Some(first), Some(last)) if last < first => None,
        range => Some(range),
    }
}

fn pieces(file: File, left: u64) -> impl futures_util::Stream<Item = std::io::Result<Bytes>> {
    stream::try_unfold((file, left), |(mut file, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0u8; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
            let count = file.read(&mut piece)?;
            piece.truncate(count);
            Ok::<_, std::io::Error>((file, piece))
        });
        let (file, piece) = read.await.map_err(std::io::Error::other)??;
        if piece.is_empty() {
            return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the file became shorter"));
        }
        let left = left - piece.len() as u64;
        Ok(Some((Bytes::from(piece), (file, left))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_below_the_folder_are_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("files");
        std::fs::create_dir_all(inside.join("a")).expect("folders");
        std::fs::write(inside.join("a/b.txt"), "yes").expect("a file");
        std::fs::write(folder.path().join("secret"), "no").expect("a file");
        std::os::unix::fs::symlink("../secret", inside.join("link")).expect("a link");
        std::os::unix::fs::symlink("..", inside.join("up")).expect("a link");
        assert!(open_below(&inside, "a/b.txt").is_ok());
        for trick in [
            "../secret",
            "a/../../secret",
            "/etc/passwd",
            "link",
            "up/secret",
            "",
            "a",
            "a/",
            "a//b.txt",
            "./a/b.txt",
            "a/b.txt/",
            "a\\b.txt",
            "a/b.txt\0",
            "..",
            ".",
        ] {
            assert!(open_below(&inside, trick).is_err(), "{trick:?}");
        }
    }

    #[test]
    fn ranges_are_read_as_the_protocol_has_them() {
        for (text, range) in [
            ("bytes=5-9", Some((Some(5), Some(9)))),
            ("bytes=5-", Some((Some(5), None))),
            ("bytes=-5", Some((None, Some(5)))),
            ("bytes=-", None),
            ("bytes=9-5", None),
            ("bytes=1-2,4-5", None),
            ("lines=1-2", None),
            ("bytes=99999999999999999999-", None),
        ] {
            assert_eq!(parse_range(text), range, "{text}");
        }
    }
}
