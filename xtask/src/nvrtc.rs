//! NVRTC as a library: source text in, machine code or PTX out.

use anyhow::{Result, bail};
use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;

/// A loaded compiler.
pub struct Nvrtc {
    library: Library,
}

/// A header that sources include by name.
pub struct Header {
    pub name: String,
    pub text: String,
}

type Program = *mut c_void;

impl Nvrtc {
    /// Loads the library at `path`.
    pub fn load(path: &Path) -> Result<Self> {
        // SAFETY: NVIDIA's library; what it runs when it is loaded touches nothing of ours.
        let library = unsafe { Library::new(path) }?;
        Ok(Self { library })
    }

    /// Compiles one source; `wants_ptx` says what to return. Every remark is an error.
    pub fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[Header],
        options: &[String],
        wants_ptx: bool,
    ) -> Result<Vec<u8>> {
        let text = |text: &str| CString::new(text).expect("no source holds a NUL");
        let (source, file) = (text(source), text(name));
        let texts: Vec<CString> = headers.iter().map(|header| text(&header.text)).collect();
        let names: Vec<CString> = headers.iter().map(|header| text(&header.name)).collect();
        let options: Vec<CString> = options.iter().map(|option| text(option)).collect();
        let pointers = |strings: &[CString]| -> Vec<*const c_char> {
            strings.iter().map(|string| string.as_ptr()).collect()
        };
        let (texts, names, options) = (pointers(&texts), pointers(&names), pointers(&options));

        let mut program: Program = std::ptr::null_mut();
        // SAFETY: the signature is nvrtc.h's; the strings outlive the call, which copies them.
        let status = unsafe {
            let create: Symbol<
                unsafe extern "C" fn(
                    *mut Program,
                    *const c_char,
                    *const c_char,
                    c_int,
                    *const *const c_char,
                    *const *const c_char,
                ) -> c_int,
            > = self.library.get(b"nvrtcCreateProgram")?;
            let count = texts.len() as c_int;
            let (texts, names) = (texts.as_ptr(), names.as_ptr());
            create(&mut program, source.as_ptr(), file.as_ptr(), count, texts, names)
        };
        if status != 0 {
            bail!("{name}: nvrtcCreateProgram gave {status}");
        }
        // SAFETY: as above; the program was made by the library.
        let status = unsafe {
            let compile: Symbol<
                unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
            > = self.library.get(b"nvrtcCompileProgram")?;
            compile(program, options.len() as c_int, options.as_ptr())
        };
        let log = self.bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?;
        let log = String::from_utf8_lossy(&log);
        let log = log.trim_end_matches('\0').trim();
        if status != 0 || !log.is_empty() {
            bail!("{name}: {log}");
        }
        let result = match wants_ptx {
            true => self.bytes(program, "nvrtcGetPTXSize", "nvrtcGetPTX"),
            false => self.bytes(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN"),
        };
        // SAFETY: the program is the library's and is not used again.
        unsafe {
            let destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int> =
                self.library.get(b"nvrtcDestroyProgram")?;
            destroy(&mut program);
        }
        result
    }

    /// One of the library's pairs of calls: how many bytes, and the bytes.
    fn bytes(&self, program: Program, size: &str, get: &str) -> Result<Vec<u8>> {
        let mut count = 0usize;
        // SAFETY: both signatures are nvrtc.h's; the buffer has the size the library asks for.
        unsafe {
            let ask: Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int> =
                self.library.get(size.as_bytes())?;
            if ask(program, &mut count) != 0 {
                bail!("{size} failed");
            }
            let mut bytes = vec![0u8; count];
            let get_bytes: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int> =
                self.library.get(get.as_bytes())?;
            if get_bytes(program, bytes.as_mut_ptr().cast()) != 0 {
                bail!("{get} failed");
            }
            Ok(bytes)
        }
    }
}
