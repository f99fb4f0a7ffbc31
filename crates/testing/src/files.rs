//! The files of the repository, and a temporary folder for the files of a test.

use std::path::{Path, PathBuf};

/// The root of this repository.
pub fn repository() -> PathBuf {
    let this = Path::new(env!("CARGO_MANIFEST_DIR"));
    this.join("../..").canonicalize().unwrap()
}

/// A directory that is gone with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        // Not by the number of the process: a process that was killed leaves its folder behind.
        let name = format!("keyfall-{name}-{:016x}", rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
