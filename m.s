	.file	"m.c"
	.section	.rodata.cst8,"aM",@progbits,8
	.p2align	3, 0x0                          # -- Begin function run
.LCPI0_0:
	.quad	0x3ff0000000000000              # double 1
	.text
	.globl	run
	.p2align	4
	.type	run,@function
run:                                    # @run
	.cfi_startproc
# %bb.0:
	testq	%r8, %r8
	jle	.LBB0_9
# %bb.1:
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
	movabsq	$9223372036854775804, %rax      # imm = 0x7FFFFFFFFFFFFFFC
	andq	%rcx, %rax
	xorl	%esi, %esi
	vmovsd	.LCPI0_0(%rip), %xmm0           # xmm0 = [1.0E+0,0.0E+0]
	vbroadcastsd	.LCPI0_0(%rip), %ymm1   # ymm1 = [1.0E+0,1.0E+0,1.0E+0,1.0E+0]
	jmp	.LBB0_2
	.p2align	4
.LBB0_7:                                #   in Loop: Header=BB0_2 Depth=1
	#APP
	#NO_APP
	incq	%rsi
	cmpq	%r8, %rsi
	je	.LBB0_8
.LBB0_2:                                # =>This Loop Header: Depth=1
                                        #     Child Loop BB0_4 Depth 2
                                        #     Child Loop BB0_6 Depth 2
	testq	%rcx, %rcx
	jle	.LBB0_7
# %bb.3:                                #   in Loop: Header=BB0_2 Depth=1
	xorl	%r9d, %r9d
	cmpq	$4, %rcx
	jb	.LBB0_6
	.p2align	4
.LBB0_4:                                #   Parent Loop BB0_2 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
	vsqrtpd	(%rdi,%r9,8), %ymm2
	vdivpd	%ymm2, %ymm1, %ymm2
	vmovupd	%ymm2, (%rdx,%r9,8)
	addq	$4, %r9
	cmpq	%r9, %rax
	jne	.LBB0_4
# %bb.5:                                #   in Loop: Header=BB0_2 Depth=1
	movq	%rax, %r9
	cmpq	%rax, %rcx
	je	.LBB0_7
	.p2align	4
.LBB0_6:                                #   Parent Loop BB0_2 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
	vmovsd	(%rdi,%r9,8), %xmm2             # xmm2 = mem[0],zero
	vsqrtsd	%xmm2, %xmm2, %xmm2
	vdivsd	%xmm2, %xmm0, %xmm2
	vmovsd	%xmm2, (%rdx,%r9,8)
	incq	%r9
	cmpq	%r9, %rcx
	jne	.LBB0_6
	jmp	.LBB0_7
.LBB0_8:
	popq	%rbp
	.cfi_def_cfa %rsp, 8
	.cfi_restore %rbp
.LBB0_9:
	vzeroupper
	retq
.Lfunc_end0:
	.size	run, .Lfunc_end0-run
	.cfi_endproc
                                        # -- End function
	.ident	"clang version 22.1.8"
	.section	".note.GNU-stack","",@progbits
	.addrsig
