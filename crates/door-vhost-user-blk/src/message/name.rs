//! What messages are called.

/// What a request is called in the specification.
pub fn name(request: u32) -> &'static str {
    match request {
        1 => "GET_FEATURES",
        2 => "SET_FEATURES",
        3 => "SET_OWNER",
        4 => "RESET_OWNER",
        5 => "SET_MEM_TABLE",
        6 => "SET_LOG_BASE",
        7 => "SET_LOG_FD",
        8 => "SET_VRING_NUM",
        9 => "SET_VRING_ADDR",
        10 => "SET_VRING_BASE",
        11 => "GET_VRING_BASE",
        12 => "SET_VRING_KICK",
        13 => "SET_VRING_CALL",
        14 => "SET_VRING_ERR",
        15 => "GET_PROTOCOL_FEATURES",
        16 => "SET_PROTOCOL_FEATURES",
        17 => "GET_QUEUE_NUM",
        18 => "SET_VRING_ENABLE",
        21 => "SET_BACKEND_REQ_FD",
        24 => "GET_CONFIG",
        25 => "SET_CONFIG",
        31 => "GET_INFLIGHT_FD",
        32 => "SET_INFLIGHT_FD",
        36 => "GET_MAX_MEM_SLOTS",
        37 => "ADD_MEM_REG",
        38 => "REM_MEM_REG",
        42 => "SET_DEVICE_STATE_FD",
        43 => "CHECK_DEVICE_STATE",
        _ => "a message that was not offered",
    }
}
