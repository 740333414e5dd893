"""temporary"""
import numpy as np
def visibility_normalised(received, mask, causal=False):
    scores=np.asarray(received); real=np.asarray(mask)
    if not causal: return scores
    n=real.sum(-1,keepdims=True); seen=n-np.cumsum(real,-1)+1
    return np.where(real[:,None,:,None],scores*(n/np.maximum(seen,1))[:,None,:,None],0).astype(np.float32)
