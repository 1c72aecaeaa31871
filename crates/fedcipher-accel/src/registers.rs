//! The device's registers, commands and codes (hardware/rtl/controller.sv).

/// Addresses.
pub const ID: u8 = 0x00;
pub const CONFIG: u8 = 0x04;
pub const COMMAND: u8 = 0x08;
pub const STATUS: u8 = 0x0c;
pub const ERROR: u8 = 0x10;
pub const COUNT: u8 = 0x14;
pub const USED: u8 = 0x18;
pub const USED_LAST: u8 = 0x1c;
pub const MODE: u8 = 0x20;
pub const FORMAT: u8 = 0x24;
pub const TIMEOUT: u8 = 0x28;
pub const CYCLES: u8 = 0x30;
pub const CYCLES_HIGH: u8 = 0x34;
pub const STARVED: u8 = 0x38;
/// Written only.
pub const KEY: u8 = 0x80;

/// "FCB1".
pub const IDENTIFICATION: u32 = 0x4643_4231;

/// Bits of STATUS.
pub const BUSY: u32 = 1;
pub const DONE: u32 = 1 << 1;
pub const FAILED: u32 = 1 << 2;
pub const KEY_THERE: u32 = 1 << 3;
pub const WIPING: u32 = 1 << 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Command {
    Key = 1,
    Prepare = 2,
    Encrypt = 3,
    Decrypt = 4,
    Wipe = 5,
    Clear = 6,
}

/// Why the device refused or broke off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u32)]
pub enum Code {
    #[error("nothing is wrong")]
    None = 0,
    #[error("there is no such command")]
    Command,
    #[error("another command is running")]
    Busy,
    #[error("a register holds what the command cannot work with")]
    Argument,
    #[error("no key has been loaded")]
    NoKey,
    #[error("fewer masks are prepared than ciphertexts are asked for")]
    NoMask,
    #[error("its memory holds no more masks")]
    Full,
    #[error("a packet is too short or too long")]
    Length,
    #[error("bits are set behind a packet's last word")]
    Padding,
    #[error("a residue is not below its prime")]
    Residue,
    #[error("a plaintext is not below t, or a ciphertext not below q")]
    Value,
    #[error("a coefficient lies outside the plaintext space")]
    Plaintext,
    #[error("a key's coefficient is none of 0, 1 and -1")]
    KeyValue,
    #[error("the key was asked for")]
    KeyRead,
    #[error("a part of a key came when none was due")]
    KeyState,
    #[error("there is no such register, or it is not for that")]
    Address,
    #[error("nothing moved for longer than TIMEOUT")]
    Timeout,
    #[error("masks came back from memory in another length")]
    MaskLength,
    #[error("it gave a code that this driver does not know")]
    Unknown,
}

impl From<u32> for Code {
    fn from(value: u32) -> Self {
        const ALL: [Code; 18] = [
            Code::None,
            Code::Command,
            Code::Busy,
            Code::Argument,
            Code::NoKey,
            Code::NoMask,
            Code::Full,
            Code::Length,
            Code::Padding,
            Code::Residue,
            Code::Value,
            Code::Plaintext,
            Code::KeyValue,
            Code::KeyRead,
            Code::KeyState,
            Code::Address,
            Code::Timeout,
            Code::MaskLength,
        ];
        ALL.get(value as usize).copied().unwrap_or(Code::Unknown)
    }
}
