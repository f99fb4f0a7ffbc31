//! A separate wall clock for some processes: libfaketime, which reads the time from a file. The
//! monotonic clock stays as it is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use keyfall_testing::server::redis_server;

const REMEDY: &str = "libfaketime is missing: install it (on Debian `apt-get install faketime`)";

pub(crate) struct FakeClock {
    library: PathBuf,
    /// Holds the offset of the clock, in seconds.
    file: PathBuf,
}

impl FakeClock {
    /// A clock that is right so far.
    pub(crate) fn new(dir: &Path) -> Result<Self, String> {
        let libraries = fs::read_dir("/usr/lib").into_iter().flatten();
        let places = libraries.filter_map(|one| Some(one.ok()?.path()));
        let places = places.chain([PathBuf::from("/usr/lib")]);
        let mut found = places.map(|dir| dir.join("faketime/libfaketimeMT.so.1"));
        let clock = FakeClock {
            library: found.find(|file| file.is_file()).ok_or(REMEDY)?,
            file: dir.join("clock"),
        };
        clock.set(0)?;
        Ok(clock)
    }

    /// The clock of one of several servers.
    pub(crate) fn of_server(&self, place: u8) -> Self {
        FakeClock {
            library: self.library.clone(),
            file: self.file.with_extension(place.to_string()),
        }
    }

    /// Sets the offset of the clock, in seconds.
    pub(crate) fn set(&self, seconds: i64) -> Result<(), String> {
        // Renamed, so that nobody reads half of it.
        let next = self.beside("next");
        let written = fs::write(&next, format!("{seconds:+}\n"));
        let there = written.and_then(|()| fs::rename(&next, &self.file));
        there.map_err(|error| format!("the fake clock cannot be set: {error}"))
    }

    /// The environment of a process that uses this clock.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        // The C library's own malloc: jemalloc asks for the time before libfaketime is ready.
        let libraries = format!("{}:libc.so.6", self.library.display());
        let settings = [
            ("LD_PRELOAD", libraries),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
        ];
        settings.map(|(name, value)| (name.into(), value)).into()
    }

    /// A program that starts `redis-server` under this clock.
    pub(crate) fn redis_server(&self) -> Result<PathBuf, String> {
        let program = self.beside("redis-server");
        let settings = self.environment();
        let exports = settings
            .iter()
            .map(|(name, value)| format!("export {name}='{value}'\n"));
        let exports: String = exports.collect();
        let server = redis_server();
        let text = format!("#!/bin/sh\n{exports}exec '{server}' \"$@\"\n");
        let written = fs::write(&program, text);
        written
            .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o755)))
            .map_err(|error| format!("{}: {error}", program.display()))?;
        Ok(program)
    }

    /// A file of this clock.
    fn beside(&self, name: &str) -> PathBuf {
        let clock = self.file.file_name().expect("it is a file");
        let clock = clock.to_string_lossy();
        self.file.with_file_name(format!("{clock}-{name}"))
    }
}
